//! Members of the kernel's structures, by its types.

use probe_engine::linux::btf::BtfError;
use probe_engine::linux::kernel::Kernel;

/// Where a member lies in its structure: a number or a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the start of the structure.
    pub offset: u64,
    /// Bytes that it has: 1 to 8.
    pub size: usize,
}

/// A member that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The session knows only the landmarks of its kernel.
    #[error("the session has no kernel to look types up in")]
    NoKernel,
    /// The kernel has no types.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// There is none.
    #[error("the kernel has no structure `{structure}` with a member `{path}`")]
    Unknown {
        /// The structure.
        structure: String,
        /// The member.
        path: String,
    },
    /// It is a structure, an array or a bit-field.
    #[error("`{path}` of `{structure}` is neither a number nor a pointer of whole bytes")]
    NoNumber {
        /// The structure.
        structure: String,
        /// The member.
        path: String,
    },
}

impl Member {
    /// That of `structure` in `kernel`: `filename`, or through structures inside each other `f_path.dentry`.
    ///
    /// # Errors
    /// [`MemberError`], a sentence for the user.
    pub fn find(kernel: &Kernel, structure: &str, path: &str) -> Result<Self, MemberError> {
        let (btf, of, name) = (kernel.btf()?, || structure.to_owned(), || path.to_owned());
        let unknown = || MemberError::Unknown { structure: of(), path: name() };
        let member = btf.member(structure, path).ok_or_else(unknown)?;
        let is_number =
            btf.plain(member.ty).and_then(|ty| ty.structure()).is_none() && btf.array(member.ty).is_none();
        let size = btf.size(member.ty).filter(|size| is_number && (1..=8).contains(size));
        match (member.offset(), size) {
            (Some(offset), Some(size)) => Ok(Self { offset, size: size as usize }),
            _ => Err(MemberError::NoNumber { structure: of(), path: name() }),
        }
    }
}
