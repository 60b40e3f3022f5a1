//! From a filter's text to its comparisons: names become numbers of fields.

use super::super::ast::{FilterExpr, Literal, Operator, Span, Spanned};
use super::super::error::{Error, Mistake, nearest};
use super::operand::{Class, class, operand};
use crate::capture::filter::{Filter, Operand, Order, Test};
use crate::capture::shape::Shape;
use crate::capture::{Base, Capture, Fetch, Field, Hop, Read, Register, What};
use crate::linux::glob::Glob;
use crate::virt_memory::LONGEST_STRING;

/// Makes `filter` the condition on what `capture` reads, whose fields have been [checked](super::super::check_fields). What it
/// names of the `parameters` is read besides.
pub(super) fn compile(filter: &FilterExpr, parameters: &[Field], capture: &mut Capture) -> Result<(), Error> {
    let mut compiler = FilterCompiler { fields: &capture.fields, parameters, hidden: Vec::new() };
    let condition = compiler.condition(filter)?;
    let hidden = compiler.hidden;
    capture.filter = Some(condition);
    capture.hidden = hidden;
    Ok(())
}

/// Turns the names of a filter into what is read.
struct FilterCompiler<'a> {
    fields: &'a [Field],
    parameters: &'a [Field],
    /// What is read besides.
    hidden: Vec<Field>,
}

impl FilterCompiler<'_> {
    /// As deep as the parser lets it be.
    fn condition(&mut self, filter: &FilterExpr) -> Result<Filter, Error> {
        Ok(match filter {
            FilterExpr::And(left, right) => Filter::All(vec![self.condition(left)?, self.condition(right)?]),
            FilterExpr::Or(left, right) => Filter::Any(vec![self.condition(left)?, self.condition(right)?]),
            FilterExpr::Not(inner) => Filter::Not(Box::new(self.condition(inner)?)),
            FilterExpr::Compare { field, user_string, op, value } => {
                let (operand, class) = match user_string {
                    true => (self.user_string(field)?, Class::Text),
                    false => self.operand(field)?,
                };
                let (negated, test) = match (&class, &value.value, order(*op)) {
                    (Class::Number(shape), Literal::Number(number @ ..0), Some(order)) => {
                        let than = self.negative(*number, shape, field).ok_or_else(|| Error {
                            span: value.span.clone(),
                            mistake: Mistake::NeverNegative(field.value.clone()),
                        })?;
                        (false, Test::Number(order, than))
                    }
                    (Class::Number(Shape::Enum(names)), Literal::Text(name), Some(order)) => {
                        let number = named(names, name, field, &value.span)?;
                        let width = self.field(field).map_or(64, width);
                        (false, Test::Number(order, signed(number, width)))
                    }
                    _ => test(*op, value, matches!(class, Class::Text), field)?,
                };
                let test = Filter::Test(operand, test);
                if negated { Filter::Not(Box::new(test)) } else { test }
            }
        })
    }

    /// What a negative number is where it is compared with a field of this shape: itself, or of an address the one that stands
    /// for an error, as the kernel's ERR_PTR makes it. `None` where the field can be neither.
    fn negative(&self, number: i128, shape: &Shape, field: &Spanned<String>) -> Option<i128> {
        let error = || Some(i64::try_from(number).ok()?.cast_unsigned().into());
        match shape {
            Shape::Signed | Shape::Result | Shape::Enum(_) => Some(number),
            Shape::Pointer(_) | Shape::Symbol => error(),
            // A word that is returned may be an address of any type.
            Shape::Unsigned | Shape::Hex if self.field(field).is_some_and(is_returned_word) => error(),
            _ => None,
        }
    }

    /// What a name stands for that is fetched.
    fn field(&self, name: &Spanned<String>) -> Option<&Field> {
        self.fields.iter().chain(self.parameters).find(|own| own.name == name.value)
    }

    /// What a name means.
    fn operand(&mut self, field: &Spanned<String>) -> Result<(Operand, Class), Error> {
        let is_shown = self.fields.iter().any(|own| own.name == field.value);
        let parameter = self.parameters.iter().find(|own| own.name == field.value && !is_shown);
        let meant = match (operand(&field.value, self.fields), parameter) {
            (None, Some(parameter)) => {
                class(&parameter.shape).map(|class| (self.hide(parameter.clone()), class))
            }
            (found, _) => found,
        };
        meant.ok_or_else(|| {
            let mistake = Mistake::NotFilterable(field.value.clone());
            Error { span: field.span.clone(), mistake }
        })
    }

    /// Reads something besides, once.
    fn hide(&mut self, field: Field) -> Operand {
        let known = self.hidden.iter().position(|own| *own == field);
        let n = known.unwrap_or_else(|| {
            self.hidden.push(field);
            self.hidden.len() - 1
        });
        Operand::Field((self.fields.len() + n) as u16)
    }

    /// The string of a process that lies at the address that a field is.
    fn user_string(&mut self, field: &Spanned<String>) -> Result<Operand, Error> {
        let fetch = self.field(field).and_then(|own| at(&own.fetch));
        let fetch = fetch.ok_or_else(|| Error {
            span: field.span.clone(),
            mistake: Mistake::NotAnAddress(field.value.clone()),
        })?;
        Ok(self.hide(Field { name: field.value.clone(), fetch, shape: Shape::Text }))
    }
}

/// The number that has this name in the enumeration that `field` is of.
fn named(names: &[(i64, String)], name: &str, field: &Spanned<String>, span: &Span) -> Result<i128, Error> {
    match names.iter().find(|(_, own)| own == name) {
        Some((number, _)) => Ok((*number).into()),
        None => {
            let nearest = nearest(names.iter().map(|(_, own)| own.as_str()), name);
            let mistake =
                Mistake::UnknownValue { name: name.to_owned(), field: field.value.clone(), nearest };
            Err(Error { span: span.clone(), mistake })
        }
    }
}

/// How many bits of a field are kept.
fn width(field: &Field) -> u32 {
    if let Shape::BitField { width, .. } = field.shape {
        return width.into();
    }
    match field.fetch.read {
        Read::Word(bytes) | Read::Address(_, bytes) | Read::Extended { of: bytes, .. } => {
            8 * u32::from(bytes)
        }
        Read::Memory(_, What::Bytes(bytes)) => 8 * u32::from(bytes),
        Read::Memory(..) | Read::Pointee { .. } => 64,
    }
}

/// What a number is in so many bits, of which the highest one is the sign: so an enumeration is read.
fn signed(number: i128, width: u32) -> i128 {
    let is_negative = (1..64).contains(&width) && number >> (width - 1) == 1;
    if is_negative { number - (1 << width) } else { number }
}

/// Whether it is the whole of what a function returns.
fn is_returned_word(field: &Field) -> bool {
    matches!(field.fetch.read, Read::Word(8)) && field.fetch.base == Base::Register(Register::Rax)
}

/// The string of a process at the address that is fetched.
fn at(address: &Fetch) -> Option<Fetch> {
    let mut hops = address.hops.clone();
    match address.read {
        Read::Word(8) | Read::Pointee { .. } => {}
        Read::Memory(hop, What::Bytes(8)) => hops.push(hop),
        _ => return None,
    }
    let string = Read::Memory(Hop::of_user(0), What::String(LONGEST_STRING));
    Some(Fetch { base: address.base.clone(), hops, read: string })
}

/// A comparison, and whether its opposite is meant.
fn test(
    op: Operator,
    value: &Spanned<Literal>,
    is_text: bool,
    field: &Spanned<String>,
) -> Result<(bool, Test), Error> {
    let wrong = |mistake| Err(Error { span: value.span.clone(), mistake });
    Ok(match (&value.value, is_text) {
        (Literal::Cpus(ranges), false) => (op == Operator::NotEqual, Test::Among(ranges.clone())),
        (Literal::Text(text), true) if op == Operator::Glob => match Glob::new(text) {
            Ok(glob) => (false, Test::Glob(glob)),
            Err(error) => return wrong(Mistake::Pattern(error)),
        },
        (Literal::Text(text), true) => (false, Test::Text(op == Operator::Equal, text.clone())),
        (Literal::Number(number), false) => match order(op) {
            Some(order) => (false, Test::Number(order, *number)),
            None => (false, Test::Bits(*number as u64)),
        },
        (Literal::Text(_), false) => return wrong(Mistake::TextForNumber(field.value.clone())),
        (Literal::Number(_) | Literal::Cpus(_), true) => {
            return wrong(Mistake::NumberForText(field.value.clone()));
        }
    })
}

fn order(op: Operator) -> Option<Order> {
    Some(match op {
        Operator::Equal => Order::Equal,
        Operator::NotEqual => Order::NotEqual,
        Operator::Less => Order::Less,
        Operator::LessOrEqual => Order::LessOrEqual,
        Operator::Greater => Order::Greater,
        Operator::GreaterOrEqual => Order::GreaterOrEqual,
        Operator::And | Operator::Glob => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Gva;
    use crate::capture::{Scene, Values};
    use crate::lang::parse_filter;
    use crate::linux::testing::Ram;
    use crate::regs::Regs;

    /// A number in RDI, one in memory that RSI leads to, and one of 4 bytes.
    fn capture(filter: &str) -> Result<Capture, Error> {
        let fetch = |base, hops, read| Fetch { base, hops, read };
        let field = |name: &str, fetch| Field { name: name.to_owned(), fetch, shape: Shape::Unsigned };
        let behind = Read::Memory(Hop::at(8), What::Bytes(8));
        let fields = vec![
            field("name", fetch(Base::Argument(0), vec![], Read::Word(8))),
            field("inner", fetch(Base::Argument(1), vec![], behind)),
            field("small", fetch(Base::Argument(0), vec![], Read::Word(4))),
        ];
        let mut capture = Capture { fields, ..Capture::default() };
        compile(&parse_filter(filter).unwrap().value, &[], &mut capture)?;
        Ok(capture)
    }

    #[test]
    fn an_enumeration_is_compared_by_its_names() {
        let names = || Shape::Enum(vec![(-1, "NONE".to_owned()), (2, "GREEN".to_owned())]);
        let field = |name: &str, shape| Field {
            name: name.to_owned(),
            fetch: Fetch::word(Base::Argument(0), 4),
            shape,
        };
        let bits = Shape::BitField { low: 4, width: 4, of: Box::new(names()) };
        let two = Shape::BitField { low: 6, width: 2, of: Box::new(names()) };
        let compiled = |filter: &str| {
            let mut capture = Capture {
                fields: vec![field("c", names()), field("bits", bits.clone()), field("two", two.clone())],
                ..Capture::default()
            };
            compile(&parse_filter(filter).unwrap().value, &[], &mut capture).map(|()| capture)
        };
        let passes = |filter: &str, rdi| {
            let (ram, regs) = (Ram::new(), Regs { rdi, ..Regs::default() });
            let memory = ram.memory();
            compiled(filter).unwrap().take(&Scene::of_registers(&regs, &memory), &mut Vec::new())
        };
        for (filter, rdi, expected) in [
            ("c == GREEN", 2, true),
            ("c == \"GREEN\"", 3, false),
            ("c != GREEN", 3, true),
            ("c == NONE", 0xffff_ffff, true),
            ("bits == GREEN", 0x21, true),
            ("bits == GREEN", 0x12, false),
            // Its highest bit is set.
            ("two == GREEN", 0x80, true),
            ("two != GREEN", 0x80, false),
            ("two == GREEN", 0x40, false),
        ] {
            assert_eq!(passes(filter, rdi), expected, "{filter}, {rdi:#x}");
        }
        let mistake = Mistake::UnknownValue {
            name: "GREN".to_owned(),
            field: "c".to_owned(),
            nearest: vec!["GREEN".to_owned()],
        };
        assert_eq!(compiled("c == GREN").map_err(|error| error.mistake), Err(mistake));
    }

    #[test]
    fn strings_of_the_user_are_read_for_the_filter_alone() {
        let ram = Ram::new();
        ram.put(Ram::BASE.add(0x100), b"/etc/passwd\0");
        ram.put(Ram::BASE.add(0x208), &Ram::USER.add(0x104).0.to_le_bytes());
        let memory = ram.memory();
        let regs = Regs { rdi: Ram::USER.add(0x100).0, rsi: Ram::BASE.add(0x200).0, ..Regs::default() };
        let passes = |filter: &str, regs: &Regs| {
            let scene = Scene::of_registers(regs, &memory);
            let mut record = Vec::new();
            let passes = capture(filter).unwrap().take(&scene, &mut record);
            assert_eq!(Values::of(&record).count(), if passes { 3 } else { 0 }, "{filter}");
            passes
        };
        assert!(passes("name.ustring ~ \"/etc/*\"", &regs));
        assert!(passes("inner.ustring == \"/passwd\" && name.ustring != \"/passwd\"", &regs));
        assert!(!passes("name.ustring ~ \"/usr/*\" || inner.ustring == \"\"", &regs));
        // A string of the kernel is none of the user, and one that is not there is neither equal nor different.
        for rdi in [Ram::BASE.add(0x100), Gva(0), Gva(1 << 40)] {
            let regs = Regs { rdi: rdi.0, ..regs };
            assert!(!passes("name.ustring ~ \"*\"", &regs));
            assert!(!passes("name.ustring != \"x\"", &regs));
        }
    }

    #[test]
    fn a_parameter_is_read_for_the_filter_alone_and_once() {
        let field = |name: &str, base, bytes, shape| Field {
            name: name.to_owned(),
            fetch: Fetch { base, hops: vec![], read: Read::Word(bytes) },
            shape,
        };
        let parameters = [
            field("dfd", Base::Argument(2), 4, Shape::Signed),
            field("name", Base::Argument(2), 8, Shape::Unsigned),
            field("$retval", Base::Register(crate::capture::Register::Rax), 8, Shape::Result),
        ];
        let ram = Ram::new();
        let memory = ram.memory();
        let regs = Regs {
            rdi: 3,
            rdx: u64::from((-100_i32).cast_unsigned()),
            rax: (-2_i64).cast_unsigned(),
            ..Regs::default()
        };
        let scene = Scene::of_registers(&regs, &memory);
        for (filter, hidden, passes) in [
            ("dfd == -100 || dfd == 3", 1, true),
            ("dfd > 0", 1, false),
            ("name == 3", 0, true),
            ("$retval < 0 && dfd < 0 && name == 3", 2, true),
            ("$retval >= 0", 1, false),
        ] {
            let fields = vec![field("name", Base::Argument(0), 8, Shape::Unsigned)];
            let mut capture = Capture { fields, ..Capture::default() };
            compile(&parse_filter(filter).unwrap().value, &parameters, &mut capture).unwrap();
            assert_eq!(capture.hidden.len(), hidden, "{filter}");
            let mut record = Vec::new();
            assert_eq!(capture.take(&scene, &mut record), passes, "{filter}");
            assert_eq!(
                Values::of(&record).count(),
                usize::from(passes),
                "{filter}: what is hidden is not kept"
            );
        }
    }

    #[test]
    fn a_negative_number_is_one_of_a_field_with_a_sign_or_an_error_in_an_address() {
        let fields = |base: &Base, bytes, shape: &Shape| {
            let fetch = Fetch { base: base.clone(), hops: vec![], read: Read::Word(bytes) };
            vec![Field { name: "x".to_owned(), fetch, shape: shape.clone() }]
        };
        let (argument, returned) = (Base::Argument(0), Base::Register(Register::Rax));
        let minus_two = u64::MAX - 1;
        let table = [
            (&argument, 4, Shape::Signed, Some(-2)),
            (&argument, 8, Shape::Result, Some(-2)),
            (&argument, 4, Shape::Enum(vec![]), Some(-2)),
            (&argument, 8, Shape::Pointer(None), Some(minus_two.into())),
            (&argument, 8, Shape::Symbol, Some(minus_two.into())),
            (&returned, 8, Shape::Unsigned, Some(minus_two.into())),
            (&returned, 8, Shape::Hex, Some(minus_two.into())),
            (&argument, 8, Shape::Unsigned, None),
            (&argument, 8, Shape::Hex, None),
            (&returned, 4, Shape::Unsigned, None),
            (&argument, 1, Shape::Bool, None),
            (&argument, 2, Shape::Octal, None),
            (&argument, 1, Shape::Char, None),
        ];
        for (base, bytes, shape, than) in &table {
            let mut capture = Capture { fields: fields(base, *bytes, shape), ..Capture::default() };
            let compiled = compile(&parse_filter("x >= -2").unwrap().value, &[], &mut capture);
            match than {
                Some(than) => {
                    let test = Test::Number(Order::GreaterOrEqual, *than);
                    assert_eq!(capture.filter, Some(Filter::Test(Operand::Field(0), test)), "{shape:?}");
                }
                None => {
                    let error = compiled.unwrap_err();
                    assert_eq!(error.to_string(), "`x` has no sign, and is never negative", "{shape:?}");
                    assert_eq!(error.span, 5..7);
                }
            }
            // Bits have no sign.
            assert!(compile(&parse_filter("x & -2").unwrap().value, &[], &mut capture).is_ok(), "{shape:?}");
        }
        let mut capture = Capture::default();
        assert!(compile(&parse_filter("common_pid == -1").unwrap().value, &[], &mut capture).is_err());
    }

    #[test]
    fn what_is_no_address_leads_to_no_string() {
        for field in ["small", "comm"] {
            let error = capture(&format!("{field}.ustring == \"a\"")).unwrap_err();
            assert_eq!(error.to_string(), format!("`{field}` is no address that a string could lie at"));
            assert_eq!(error.span, 0..field.len());
        }
    }
}
