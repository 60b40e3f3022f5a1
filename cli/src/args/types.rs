//! `vmm types`.

use super::{KernelArg, SymbolSource};
use clap::Args;

/// Show types of a kernel as C
///
/// Structures, unions, enumerations, typedefs, functions and per-CPU variables are shown from the kernel's own type information
/// (BTF). Offsets and sizes are in bytes, offsets of bit-fields in bytes and bits. Members of structures without a name
/// are shown where they are, with offsets from the start of the outermost structure. All types of one name are shown.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm types task_struct
  vmm types struct open_how enum pid_type gfp_t do_sys_openat2
  vmm types 'tcp_*'
  vmm types --kernel bzImage 'struct bio*'")]
pub(crate) struct Types {
    /// A name, or a pattern as 'tcp_*', which lists names
    ///
    /// With struct, union, enum or typedef before it, only types of that sort are shown.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    #[command(flatten)]
    pub(crate) symbols: SymbolSource,
}
