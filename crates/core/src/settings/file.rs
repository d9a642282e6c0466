//! Reads a settings file as text, up to a size limit.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Size limit of a settings file.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Reads a whole file. `allowed` names what the file should be, for the error.
///
/// # Errors
/// The message of a violation: the file cannot be read, is not UTF-8, or is too large.
pub fn read_text_file(path: &Path, allowed: &str) -> Result<String, String> {
    let mut text = String::new();
    let length = File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot be read: {error}; allowed: {allowed}"))?;
    if u64::try_from(length).is_ok_and(|length| length > MAX_FILE_BYTES) {
        return Err(format!("is larger than {MAX_FILE_BYTES} bytes; allowed: {allowed}"));
    }
    Ok(text)
}
