//! Which kernels are probed, where they come from, and the initramfs images that run on them.
//!
//! Nothing of this is kept in git: [`manifest`] names Debian packages, a [`Fetcher`] gets them through [`apt`] into
//! the [`cache`], [`KernelFiles`] are a user's own kernel, and [`initramfs`] builds the images from programs that are there.

pub mod apt;
pub mod archive;
pub mod cache;
pub mod console;
mod contents;
pub mod fetch;
mod fetcher;
mod files;
pub mod initramfs;
pub mod manifest;
pub mod modules;
mod package;
pub mod sources;
mod tree;

pub use apt::Apt;
pub use cache::{Cache, FetchedKernel, NotFetched};
pub use contents::file_names;
pub use fetcher::Fetcher;
pub use files::{KernelFiles, NoKernel};
pub use manifest::{DEFAULT_KERNEL, Flavour, KERNELS, Kernel, NoName, SINCE_7, Series};
pub use modules::{Modules, name_of};
