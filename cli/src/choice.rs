//! Which host a guest runs on. That is found out, and an emulated host starts, while the kernel is read.

use crate::args::{Guest, HostArgs, HostChoice};
use crate::host_image::Begun;
use crate::say::note;
use anyhow::{Error, Result, anyhow};
use std::path::Path;
use std::thread::{self, JoinHandle};
use vmm::guest::Host;
use vmm::host::memory_for;

/// Where the guest will run.
pub(crate) enum Chosen {
    /// On this KVM.
    Kvm(Host),
    /// In the emulated host, which has begun to start if there is one.
    Emulated(Option<Begun>),
}

/// A choice that is being made.
pub(crate) struct Choosing(JoinHandle<(Result<Chosen>, Option<Error>)>);

impl Choosing {
    /// Carries out what the user said about the host of `guest`.
    pub(crate) fn begin(guest: &Guest) -> Self {
        /// What the files of most guests take, in bytes.
        const FILES: u64 = 100 << 20;
        let HostArgs { host, kvm_device } = &guest.place;
        let (kind, device, memory) = (*host, kvm_device.clone(), memory_for(guest.memory.0 >> 20, FILES));
        let emulated = move || Ok(Chosen::Emulated(Begun::new(memory)));
        Self(thread::spawn(move || match kind {
            HostChoice::Emulated => (emulated(), None),
            HostChoice::Kvm => (own_kvm(&device), None),
            HostChoice::Auto => match own_kvm(&device) {
                Ok(chosen) => (Ok(chosen), None),
                Err(reason) => (emulated(), Some(reason)),
            },
        }))
    }

    /// What was chosen. Says why, where the user left that to us.
    pub(crate) fn chosen(self) -> Result<Chosen> {
        let (chosen, why_emulated) = self.0.join().map_err(|_| anyhow!("no host could be chosen"))?;
        if let Some(reason) = why_emulated {
            note(format_args!("using the emulated host: {reason:#}"));
        }
        chosen
    }
}

fn own_kvm(device: &Path) -> Result<Chosen> {
    Ok(Chosen::Kvm(Host::open_at(device)?))
}
