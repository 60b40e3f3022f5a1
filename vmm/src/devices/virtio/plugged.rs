//! The virtio devices that a guest has, plugged in and at work.

use super::super::pci::RootBus;
use super::super::{Bus, Device};
use super::console::{Console, Port};
use super::fs::{FOLDERS, FolderDevice, Server};
use super::{Rng, Transport, Virtio};
use crate::kvm::{Machine, Space};
use crate::layout;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// What a guest has beside what every one has. Where that is nothing, there is no PCI bus.
#[derive(Default)]
pub struct Extras {
    /// Streams that it finds by their names.
    pub ports: Vec<Port>,
    /// Folders that it can mount.
    pub folders: Option<Folders>,
    /// Random numbers.
    pub rng: bool,
}

/// Folders, and the way to their server.
pub struct Folders {
    /// By what the guest mounts them, in the order in which the server numbers them.
    pub tags: Vec<String>,
    /// Takes requests.
    pub requests: Box<dyn Write + Send>,
    /// Gives answers. Its thread ends with it, and with nothing else.
    pub answers: Box<dyn Read + Send>,
    /// Called when the answers have ended: from then on the guest finds no file.
    pub lost: Box<dyn FnOnce() + Send>,
}

impl Extras {
    /// Whether there is anything.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.ports.is_empty() && self.folders.is_none() && !self.rng
    }
}

/// Devices at work. When it is dropped, no memory of the guest is touched any more, and their threads end: as soon as
/// nobody outside keeps them.
pub struct Plugged {
    devices: Vec<Arc<dyn Virtio>>,
    console: Option<Arc<Console>>,
}

impl Plugged {
    /// Plugs `extras` into `machine`, by its `bus`. Their threads are [confined](crate::confine) or not.
    ///
    /// # Errors
    /// When the host is out of descriptors or threads, and when there are more devices than a bus has.
    pub fn plug(extras: Extras, machine: &Machine, bus: &mut Bus, confine: bool) -> io::Result<Self> {
        let mut plugged = Self { devices: Vec::new(), console: None };
        if extras.is_none() {
            return Ok(plugged);
        }
        let Extras { ports, folders, rng } = extras;
        if !ports.is_empty() {
            let console = Arc::new(Console::new(ports)?);
            console.start(confine)?;
            plugged.devices.push(console.clone());
            plugged.console = Some(console);
        }
        if rng {
            let rng = Rng::new()?;
            rng.start(confine)?;
            plugged.devices.push(Arc::new(rng));
        }
        if let Some(Folders { tags, requests, answers, lost }) = folders {
            let server = Server::new(requests);
            server.start(answers, lost, confine)?;
            for (number, tag) in (0..).zip(tags.iter().take(FOLDERS)) {
                let folder = FolderDevice::new(tag, number, server.clone())?;
                folder.start(confine)?;
                plugged.devices.push(Arc::new(folder));
            }
        }
        plugged.put_on(machine, bus).ok_or_else(|| io::Error::other("the PCI bus is full"))?;
        Ok(plugged)
    }

    fn put_on(&self, machine: &Machine, bus: &mut Bus) -> Option<()> {
        let mut root = RootBus::default();
        for device in &self.devices {
            let range = root.allocate(Transport::SIZE)?;
            let (memory, messages) = (machine.ram().clone(), Box::new(machine.messages()));
            let base = range.start.try_into().ok()?;
            let transport = Arc::new(Transport::new(device.clone(), base, memory, messages, machine));
            bus.add(Space::Memory, range, transport.clone());
            root.add(transport).then_some(())?;
        }
        let ports = u64::from(layout::PCI_CONFIG.start)..u64::from(layout::PCI_CONFIG.end);
        let root: Arc<dyn Device> = Arc::new(root);
        bus.add(Space::Port, ports, root);
        Some(())
    }
}

impl Drop for Plugged {
    fn drop(&mut self) {
        self.devices.iter().flat_map(|device| device.queues()).for_each(|queue| queue.end());
        if let Some(console) = &self.console {
            console.end();
        }
    }
}
