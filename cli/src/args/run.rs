//! `vmm run`.

use super::{
    Arming, Assisted, Bundled, Controlled, Dropped, Guarded, Guest, Injections, Orders, Probes, Records,
    Sampled, SplatArgs, heading,
};
use clap::Args;
use std::path::PathBuf;

/// Boot a kernel with probes in it
///
/// The guest's console goes to standard output, hits go to standard error or are recorded, and a table of all probes
/// follows when the guest has ended. When standard input is a terminal, it is the guest's: Ctrl-A x ends the run. With a
/// command behind --, standard output is the command's.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm run --probe do_sys_openat2 -- cat /etc/passwd
  vmm run --kernel bzImage --initrd initrd.img --cpus 2 --probe 'vfs_*' --output hits.json
  vmm run --probe do_sys_openat2 --rwdir out -- ./my_test --fast
  vmm run --kernel debian:6.12 --probe do_sys_openat2 -- cat /etc/passwd
  vmm run --kernel linux --probe do_sys_openat2 -- cat /etc/passwd
  vmm run --dry-run --probe 'vfs_*' --probe 'p do_sys_openat2 how->flags'
  vmm run --dry-run --probe 't sched:sched_switch'
  vmm run --watch panic_on_oops:4:w --watch jiffies:8:rw --append workload=open:1
  vmm run --probe do_sys_openat2 --filter 'filename ~ \"/etc/*\"' -- head -n 1 /etc/passwd
  vmm run --cpus 2 --hold syscall:umask --until syscall:chdir -- ./my_race
  vmm run --inject syscall:chdir=-EIO -- sh -c 'cd /proc || echo failed'
  vmm run --fail-nth 'kmem_cache_alloc*=NULL under syscall:chdir' -- sh -c 'cd /proc'
  vmm run --cat /proc/version --append workload=idle:3
  vmm run --probe do_sys_openat2+0x5 --format json --append workload=open:3

Definitions:
  p:reads vfs_read count pos=+0($arg4):s64 file->f_inode->i_ino
  r vfs_read ret=$retval if ret < 0 && comm != \"cat\"
  p syscall:openat if filename ~ \"/etc/*\"
  r syscall:openat filename:string if $retval < 0
  p vfs_read tgid=$current->tgid name=(dentry)(file->f_path.dentry)->d_name.name:string
  p vfs_read hist:keys=common_pid.execname,count.log2:values=count:sort=hitcount.descending

Exit codes:
  0      the guest powered itself off or reset, or Ctrl-A x
  CMD's  with a command: its own, as a shell gives it; 127 where there is no such program, 126 where it cannot be run
  2      the run could not be started, and why was said
  122    a probe was overwritten, or was never armed, and which and why was said; single functions of a pattern may
         stay unarmed as long as others are; or the guest never had what --cat or --exec names; or an order (--hold) was never reached, or no
         call failed that was to (--inject)
  123    the guest died (panic, triple fault), or halted without switching itself off; with --splat fail also where its
         kernel reported what is not allowed, whatever CMD's own exit code is
  124    it took longer than --timeout
  125    the emulated host died, which says nothing about the guest, or the guest did not come to run the command,
         or what was to be recorded could not be written
  128+n  ended by signal n")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) probes: Probes,
    #[command(flatten)]
    pub(crate) sampled: Sampled,
    #[command(flatten)]
    pub(crate) guarded: Guarded,
    #[command(flatten)]
    pub(crate) dropped: Dropped,
    #[command(flatten)]
    pub(crate) orders: Orders,
    #[command(flatten)]
    pub(crate) injections: Injections,
    #[command(flatten)]
    pub(crate) guest: Guest,
    #[command(flatten)]
    pub(crate) assisted: Assisted,
    #[command(flatten)]
    pub(crate) records: Records,
    #[command(flatten)]
    pub(crate) splats: SplatArgs,
    #[command(flatten)]
    pub(crate) arming: Arming,
    #[command(flatten)]
    pub(crate) bundled: Bundled,
    #[command(flatten)]
    pub(crate) controlled: Controlled,
    /// A module whose functions are probed need not be loaded
    ///
    /// Without this, a probe in a module that is neither in the guest's initramfs nor, with a command, among the kernel's
    /// modules, in the working directory or in the command's words, is refused before the boot; and one in a module that was
    /// never loaded ends the run with exit code 122, as any probe that was never armed.
    #[arg(long, hide_short_help = true, help_heading = heading::ADVANCED)]
    pub(crate) allow_pending: bool,
    /// Show the members of every structure that an argument points to, not only of small ones
    #[arg(long, hide_short_help = true, help_heading = heading::ADVANCED)]
    pub(crate) deep: bool,
    /// Write what was resolved to this folder: `target` for --target, and `kernel` for --kernel. Run nothing
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["target", "dry_run", "bundle"])]
    pub(crate) write_target: Option<PathBuf>,
}

impl Run {
    /// The same, which records where a run with a call that fails is to.
    pub(crate) fn recording_as_said(mut self) -> Self {
        self.records.output = self.injections.fail_record.take().or(self.records.output);
        self
    }

    /// A run of this guest in which nothing is asked for.
    pub(super) fn of(guest: Guest, records: Records, arming: Arming) -> Self {
        Self {
            probes: Probes::default(),
            sampled: Sampled::default(),
            guarded: Guarded::default(),
            dropped: Dropped::default(),
            orders: Orders::default(),
            injections: Injections::default(),
            guest,
            assisted: Assisted::default(),
            records,
            splats: SplatArgs::default(),
            arming,
            bundled: Bundled::default(),
            controlled: Controlled::default(),
            allow_pending: false,
            deep: false,
            write_target: None,
        }
    }
}
