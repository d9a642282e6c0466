//! Reads a pool entry without a value of its own: there may be a million, and most of each is skipped.

use std::net::IpAddr;

use serde::de::MapAccess;

use super::lenient::{Fields, Lenient, Object, Shape, Text, skip_value};
use super::{AdminState, BackendAddress};

/// Reads one entry after the other, in the same memory.
#[derive(Default)]
pub(super) struct AddressReader {
    name: String,
    has_name: bool,
    properties: PropertiesReader,
    has_odd_properties: bool,
}

#[derive(Default)]
struct PropertiesReader {
    ip_address: Option<IpAddr>,
    interface: InterfaceReader,
    /// `None` for a word that is not known.
    admin_state: Option<AdminState>,
    text: String,
}

#[derive(Default)]
struct InterfaceReader {
    id: String,
    has_id: bool,
}

impl AddressReader {
    /// Forgets the entry before.
    pub(super) fn reset(&mut self) {
        (self.has_name, self.has_odd_properties) = (false, false);
        self.properties.reset();
    }

    /// The entry that was read, which was a value of this shape.
    pub(super) fn address(&self, shape: Shape) -> BackendAddress<'_> {
        let properties = &self.properties;
        let is_well_formed = shape == Shape::Read && !self.has_odd_properties;
        BackendAddress {
            name: self.has_name.then_some(&*self.name),
            ip_address: properties.ip_address,
            interface: properties.interface.has_id.then_some(&*properties.interface.id),
            admin_state: properties.admin_state.filter(|_| is_well_formed),
        }
    }
}

impl Fields for AddressReader {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "name" => self.has_name = map.next_value_seed(Lenient(Text(&mut self.name)))? == Shape::Read,
            "properties" => {
                self.properties.reset();
                self.has_odd_properties = map.next_value_seed(Lenient(Object(&mut self.properties)))? == Shape::Other;
            }
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

impl PropertiesReader {
    fn reset(&mut self) {
        self.ip_address = None;
        self.interface.has_id = false;
        self.admin_state = Some(AdminState::None);
    }
}

impl Fields for PropertiesReader {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "ipAddress" => {
                let is_text = map.next_value_seed(Lenient(Text(&mut self.text)))? == Shape::Read;
                self.ip_address = self.text.parse().ok().filter(|_| is_text);
            }
            "adminState" => {
                self.admin_state = match map.next_value_seed(Lenient(Text(&mut self.text)))? {
                    Shape::Read => AdminState::parse(&self.text),
                    Shape::Null => Some(AdminState::None),
                    Shape::Other => None,
                }
            }
            "networkInterfaceIPConfiguration" => {
                self.interface.has_id = false;
                map.next_value_seed(Lenient(Object(&mut self.interface)))?;
            }
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

impl Fields for InterfaceReader {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "id" => self.has_id = map.next_value_seed(Lenient(Text(&mut self.id)))? == Shape::Read,
            _ => skip_value(map)?,
        }
        Ok(())
    }
}
