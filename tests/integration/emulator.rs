//! The ARM emulator, judged by clients that nobody here wrote.

mod clients;
mod cloud_controller_manager;
mod evidence;
mod process;
