//! A folder that the guest sees and cannot change: of all that can be asked of files, only what reads is here.

use super::hidden::Mounts;
use super::noted::Noted;
use fuse_backend_rs::abi::fuse_abi::stat64;
use fuse_backend_rs::api::filesystem::{
    Context, DirEntry, Entry, FileSystem, FsOptions, OpenOptions, ZeroCopyWriter,
};
use fuse_backend_rs::passthrough::PassthroughFs;
use std::ffi::CStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

type Files = PassthroughFs<()>;
type Inode = <Files as FileSystem>::Inode;
type Handle = <Files as FileSystem>::Handle;

/// The files below one folder.
pub(super) struct ReadOnly {
    pub(super) files: Files,
    pub(super) mounts: Arc<Mounts>,
    /// Notes what is looked at, where that is wanted.
    pub(super) noted: Option<Noted>,
}

/// An overlay opens all files below it with O_NOATIME, which Linux allows to a file's owner alone.
const OWNERS_ALONE: u32 = libc::O_NOATIME as u32;

/// Whether a file is opened for nothing but reading (include/uapi/asm-generic/fcntl.h).
fn only_reads(flags: u32) -> bool {
    const ACCESS: u32 = libc::O_ACCMODE as u32;
    const CHANGES: u32 =
        (libc::O_TRUNC | libc::O_CREAT | libc::O_APPEND | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
    flags & ACCESS == libc::O_RDONLY as u32 && flags & CHANGES == 0
}

fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::EROFS)
}

/// What is not here answers ENOSYS: that is what the trait does by itself.
impl FileSystem for ReadOnly {
    type Inode = Inode;
    type Handle = Handle;

    fn init(&self, capable: FsOptions) -> io::Result<FsOptions> {
        // Who lists a folder mostly looks at its files, too. Left to decide, the kernel asks for each of them by itself
        // behind the first page of names (`fuse_use_readdirplus`, fs/fuse/readdir.c).
        Ok(self.files.init(capable)? - FsOptions::READDIRPLUS_AUTO)
    }

    fn destroy(&self) {
        self.files.destroy();
    }

    fn lookup(&self, ctx: &Context, parent: Inode, name: &CStr) -> io::Result<Entry> {
        let entry = self.files.lookup(ctx, parent, name)?;
        if self.mounts.is_hidden(entry.attr.st_dev) {
            self.files.forget(ctx, entry.inode, 1);
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        if let Some(noted) = &self.noted {
            noted.found(parent, name.to_bytes(), entry.inode);
        }
        Ok(entry)
    }

    fn forget(&self, ctx: &Context, inode: Inode, count: u64) {
        self.files.forget(ctx, inode, count);
    }

    fn getattr(&self, ctx: &Context, inode: Inode, handle: Option<Handle>) -> io::Result<(stat64, Duration)> {
        self.files.getattr(ctx, inode, handle)
    }

    fn readlink(&self, ctx: &Context, inode: Inode) -> io::Result<Vec<u8>> {
        self.files.readlink(ctx, inode)
    }

    fn open(
        &self,
        ctx: &Context,
        inode: Inode,
        flags: u32,
        fuse_flags: u32,
    ) -> io::Result<(Option<Handle>, OpenOptions, Option<u32>)> {
        if !only_reads(flags) {
            return Err(refused());
        }
        let opened = self.files.open(ctx, inode, flags & !OWNERS_ALONE, fuse_flags)?;
        if let Some(noted) = &self.noted {
            noted.opened(inode);
        }
        Ok(opened)
    }

    fn read(
        &self,
        ctx: &Context,
        inode: Inode,
        handle: Handle,
        to: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        lock_owner: Option<u64>,
        flags: u32,
    ) -> io::Result<usize> {
        // The handle's own flags are made those of the request: they must not become others.
        let flags = flags & !(libc::O_ACCMODE | libc::O_APPEND) as u32 & !OWNERS_ALONE;
        self.files.read(ctx, inode, handle, to, size, offset, lock_owner, flags)
    }

    fn flush(&self, _: &Context, _: Inode, _: Handle, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn release(
        &self,
        ctx: &Context,
        inode: Inode,
        flags: u32,
        handle: Handle,
        flush: bool,
        flock_release: bool,
        lock_owner: Option<u64>,
    ) -> io::Result<()> {
        self.files.release(ctx, inode, flags, handle, flush, flock_release, lock_owner)
    }

    fn statfs(&self, ctx: &Context, inode: Inode) -> io::Result<libc::statvfs64> {
        self.files.statfs(ctx, inode)
    }

    fn opendir(&self, ctx: &Context, inode: Inode, flags: u32) -> io::Result<(Option<Handle>, OpenOptions)> {
        match only_reads(flags) {
            true => self.files.opendir(ctx, inode, flags & !OWNERS_ALONE),
            false => Err(refused()),
        }
    }

    fn readdir(
        &self,
        ctx: &Context,
        inode: Inode,
        handle: Handle,
        size: u32,
        offset: u64,
        add_entry: &mut dyn FnMut(DirEntry<'_>) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.files.readdir(ctx, inode, handle, size, offset, add_entry)
    }

    fn readdirplus(
        &self,
        ctx: &Context,
        inode: Inode,
        handle: Handle,
        size: u32,
        offset: u64,
        add_entry: &mut dyn FnMut(DirEntry<'_>, Entry) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut hidden = Vec::new();
        let mut add = |name: DirEntry<'_>, mut entry: Entry| {
            if self.mounts.is_hidden(entry.attr.st_dev) {
                hidden.push(entry.inode);
                // A name and nothing else.
                entry = Entry::default();
            } else if let Some(noted) = &self.noted {
                noted.found(inode, name.name, entry.inode);
            }
            add_entry(name, entry)
        };
        let listed = self.files.readdirplus(ctx, inode, handle, size, offset, &mut add);
        hidden.into_iter().for_each(|inode| self.files.forget(ctx, inode, 1));
        listed
    }

    fn releasedir(&self, ctx: &Context, inode: Inode, flags: u32, handle: Handle) -> io::Result<()> {
        self.files.releasedir(ctx, inode, flags, handle)
    }

    fn access(&self, ctx: &Context, inode: Inode, mask: u32) -> io::Result<()> {
        match mask & libc::W_OK as u32 {
            0 => self.files.access(ctx, inode, mask),
            _ => Err(refused()),
        }
    }

    fn lseek(
        &self,
        ctx: &Context,
        inode: Inode,
        handle: Handle,
        offset: u64,
        whence: u32,
    ) -> io::Result<u64> {
        self.files.lseek(ctx, inode, handle, offset, whence)
    }
}
