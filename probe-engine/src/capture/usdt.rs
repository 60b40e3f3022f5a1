//! What is read at a tracepoint that a program has of its own: where its arguments are is known when its file is.

use super::{Base, Capture, Fetch, Field, Hop, Read, What};
use crate::linux::usdt::{UsdtArgument, UsdtPlace};

/// What cannot be read at a tracepoint of a program's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is argument {number} there, and {why}")]
pub struct NoArgument {
    field: String,
    number: u16,
    why: Why,
}

/// Why it cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Why {
    #[error("there are only {0}")]
    Missing(usize),
    #[error(
        "the file says of it nothing that can be read: it is no whole number in a register or behind one"
    )]
    Elsewhere,
    #[error("leads nowhere: it has {0} bytes, and a pointer has 8")]
    NoPointer(u8),
}

impl Capture {
    /// The same where the arguments are at these places, and the program's registers lie where argument `saved` leads.
    ///
    /// # Errors
    /// The first field that cannot be read there.
    pub fn at_usdt(self, saved: u8, arguments: &[UsdtArgument]) -> Result<Self, NoArgument> {
        let placed = |field: Field| match field.fetch.at_usdt(saved, arguments) {
            Ok(fetch) => Ok(Field { fetch, ..field }),
            Err((number, why)) => Err(NoArgument { field: field.name, number: number + 1, why }),
        };
        let all = |fields: Vec<Field>| fields.into_iter().map(placed).collect::<Result<Vec<_>, _>>();
        Ok(Self { fields: all(self.fields)?, hidden: all(self.hidden)?, ..self })
    }
}

impl Fetch {
    fn at_usdt(self, saved: u8, arguments: &[UsdtArgument]) -> Result<Self, (u16, Why)> {
        let Base::Usdt(number) = self.base else { return Ok(self) };
        let fails = |why| (u16::from(number), why);
        let argument = arguments.get(usize::from(number)).ok_or(fails(Why::Missing(arguments.len())))?;
        let UsdtArgument { bytes, is_signed, at } = *argument;
        // Of a value that is kept as it is: how much.
        let wanted = match self.read {
            Read::Word(wanted) if self.hops.is_empty() => Some(wanted),
            _ => None,
        };
        if wanted.is_none() && bytes != 8 {
            return Err(fails(Why::NoPointer(bytes)));
        }
        let extended = |wanted| Read::Extended { at: None, of: bytes, is_signed, bytes: wanted };
        let word = |wanted| if wanted <= bytes { Read::Word(wanted) } else { extended(wanted) };
        let read = wanted.map_or(self.read, word);
        let behind = |offset| [Hop::of_user(offset)].into_iter().chain(self.hops.iter().copied()).collect();
        Ok(match at {
            UsdtPlace::Unknown => return Err(fails(Why::Elsewhere)),
            UsdtPlace::Constant(number) => Self { base: Base::Constant(number), read, ..self },
            UsdtPlace::Register(register) => Self { base: Base::Saved(saved, register), read, ..self },
            UsdtPlace::Memory(register, offset) => {
                let base = Base::Saved(saved, register);
                match read {
                    Read::Word(wanted) if self.hops.is_empty() => {
                        let what = What::Bytes(wanted.into());
                        Self { base, hops: Vec::new(), read: Read::Memory(Hop::of_user(offset), what) }
                    }
                    Read::Extended { at: None, of, is_signed, bytes } => {
                        let read = Read::Extended { at: Some(Hop::of_user(offset)), of, is_signed, bytes };
                        Self { base, read, ..self }
                    }
                    read => Self { base, hops: behind(offset), read },
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Register;
    use crate::capture::shape::Shape;

    const ARGUMENTS: [UsdtArgument; 5] = [
        UsdtArgument { bytes: 8, is_signed: false, at: UsdtPlace::Register(Register::Rbx) },
        UsdtArgument { bytes: 4, is_signed: true, at: UsdtPlace::Memory(Register::Rbp, -20) },
        UsdtArgument { bytes: 1, is_signed: false, at: UsdtPlace::Register(Register::Rax) },
        UsdtArgument { bytes: 4, is_signed: true, at: UsdtPlace::Constant(u64::MAX) },
        UsdtArgument { bytes: 8, is_signed: false, at: UsdtPlace::Unknown },
    ];

    fn read(n: u8, hops: &[i64], read: Read) -> Result<Fetch, String> {
        let hops = hops.iter().copied().map(Hop::of_user).collect();
        let fetch = Fetch { base: Base::Usdt(n), hops, read };
        let field = Field { name: "f".to_owned(), fetch, shape: Shape::Hex };
        let capture = Capture { fields: vec![field], ..Capture::default() };
        let placed = capture.at_usdt(1, &ARGUMENTS).map_err(|error| error.to_string())?;
        Ok(placed.fields.into_iter().next().unwrap().fetch)
    }

    #[test]
    fn arguments_are_read_where_the_file_says() {
        let saved = |register| Base::Saved(1, register);
        let fetch = |base, hops: &[i64], read| {
            Ok(Fetch { base, hops: hops.iter().copied().map(Hop::of_user).collect(), read })
        };
        let text = Read::Memory(Hop::of_user(0), What::String(64));
        let (bx, bp, ax) = (saved(Register::Rbx), saved(Register::Rbp), saved(Register::Rax));
        assert_eq!(read(0, &[], Read::Word(8)), fetch(bx.clone(), &[], Read::Word(8)));
        assert_eq!(read(0, &[], Read::Word(2)), fetch(bx.clone(), &[], Read::Word(2)));
        assert_eq!(read(0, &[16], text), fetch(bx, &[16], text));
        let own = Read::Memory(Hop::of_user(-20), What::Bytes(4));
        assert_eq!(read(1, &[], Read::Word(4)), fetch(bp.clone(), &[], own));
        let extended = Read::Extended { at: Some(Hop::of_user(-20)), of: 4, is_signed: true, bytes: 8 };
        assert_eq!(read(1, &[], Read::Word(8)), fetch(bp, &[], extended));
        let extended = Read::Extended { at: None, of: 1, is_signed: false, bytes: 4 };
        assert_eq!(read(2, &[], Read::Word(4)), fetch(ax, &[], extended));
        assert_eq!(read(3, &[], Read::Word(4)), fetch(Base::Constant(u64::MAX), &[], Read::Word(4)));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let text = Read::Memory(Hop::of_user(0), What::String(64));
        for (n, hops, of, expected) in [
            (5, &[][..], Read::Word(8), "`f` is argument 6 there, and there are only 5"),
            (2, &[], text, "`f` is argument 3 there, and leads nowhere: it has 1 bytes, and a pointer has 8"),
            (
                3,
                &[8],
                Read::Word(8),
                "`f` is argument 4 there, and leads nowhere: it has 4 bytes, and a pointer has 8",
            ),
        ] {
            assert_eq!(read(n, hops, of).unwrap_err(), expected);
        }
        assert!(
            read(4, &[], Read::Word(8))
                .unwrap_err()
                .starts_with("`f` is argument 5 there, and the file says")
        );
    }
}
