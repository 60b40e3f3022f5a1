//! What KVM knows of a vCPU besides its state: its time-stamp counter and its statistics.
#![allow(unsafe_code, reason = "system calls of KVM that kvm-ioctls does not have")]

use super::vcpu::KvmVcpu;
use kvm_bindings::{KVMIO, Msrs, kvm_device_attr, kvm_msr_entry};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use vmm_sys_util::ioctl::{ioctl, ioctl_with_ref};
use vmm_sys_util::{ioctl_io_nr, ioctl_iow_nr};

ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);
ioctl_io_nr!(KVM_GET_STATS_FD, KVMIO, 0xce);

/// KVM_VCPU_TSC_CTRL and KVM_VCPU_TSC_OFFSET (Documentation/virt/kvm/devices/vcpu.rst).
const TSC_CTRL: u32 = 0;
const TSC_OFFSET: u64 = 0;
/// IA32_TIME_STAMP_COUNTER.
const TSC: u32 = 0x10;

impl KvmVcpu {
    /// By how many ticks the guest's time-stamp counter is ahead of the host's, modulo 2^64.
    #[must_use]
    pub fn tsc_offset(&self) -> u64 {
        let mut offset = 0u64;
        let attr = kvm_device_attr {
            group: TSC_CTRL,
            attr: TSC_OFFSET,
            addr: (&raw mut offset) as u64,
            ..Default::default()
        };
        // SAFETY: the attribute is a u64 (vcpu.rst, 4.1), and KVM writes it to `addr`, which is one that lives longer than
        // the call.
        let done = unsafe { ioctl_with_ref(self.fd(), KVM_GET_DEVICE_ATTR(), &attr) };
        if done == 0 { offset } else { self.measured_tsc_offset().unwrap_or(0) }
    }

    /// The same, less exact, of a KVM before Linux 5.16.
    fn measured_tsc_offset(&self) -> Option<u64> {
        let mut msrs = Msrs::from_entries(&[kvm_msr_entry { index: TSC, ..Default::default() }]).ok()?;
        self.fd().get_msrs(&mut msrs).ok().filter(|read| *read == 1)?;
        Some(msrs.as_slice().first()?.data.wrapping_sub(crate::clock::ticks()))
    }

    /// Its statistics, which can be read while it runs; `None` with a KVM before Linux 5.14.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        // SAFETY: the call takes no argument and returns a new descriptor or -1.
        let fd = unsafe { ioctl(self.fd(), KVM_GET_STATS_FD()) };
        if fd < 0 {
            return None;
        }
        // SAFETY: it is open, and nobody else knows of it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Statistics::of(file).ok().flatten()
    }
}

/// The number of a vCPU's exits, as KVM counts them.
pub struct Statistics {
    file: File,
    exits: u64,
}

impl Statistics {
    /// Finds the statistic `exits` (Documentation/virt/kvm/api.rst, 4.133).
    fn of(file: File) -> io::Result<Option<Self>> {
        const HEADER: usize = 24;
        /// Bytes of a descriptor before its name.
        const DESCRIPTOR: usize = 16;
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
        };
        let (name_size, count) = (word(&header, 4) as usize, word(&header, 8));
        let (descriptors, data) = (u64::from(word(&header, 16)), u64::from(word(&header, 20)));
        let mut descriptor = vec![0; DESCRIPTOR + name_size.min(256)];
        for n in 0..u64::from(count.min(4096)) {
            let at = descriptors + n * descriptor.len() as u64;
            file.read_exact_at(&mut descriptor, at)?;
            let name = descriptor.get(DESCRIPTOR..).unwrap_or_default();
            if name.split(|byte| *byte == 0).next() == Some(b"exits") {
                return Ok(Some(Self { file, exits: data + u64::from(word(&descriptor, 8)) }));
            }
        }
        Ok(None)
    }

    /// How often the vCPU has left the guest, for KVM or for us.
    #[must_use]
    pub fn exits(&self) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, self.exits).map_or(0, |()| u64::from_le_bytes(bytes))
    }
}
