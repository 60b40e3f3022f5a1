//! From a definition to what is read at its hits: symbols, parameters and members become registers, addresses and
//! offsets, before the guest runs.

mod cast;
mod event;
mod filter;
mod hist;
mod local;
mod operand;
mod variable;
mod way;

pub use hist::histogram;

use super::ast::{
    self, Argument, Definition, DefinitionKind, Element, FetchExpr, FetchType, Span, Spanned, Variable,
};
use super::error::{Error, Mistake};
use super::fields::{RETURN_VALUE, check_filter};
use super::{argument_name, check_fields, check_names};
use crate::addr::Gva;
use crate::capture::argument_place::ArgumentPlace;
use crate::capture::shape::Shape;
use crate::capture::typed::{Expand, NoArguments, Parameter, Signature};
use crate::capture::{Base, Capture, Fetch, Field, Hop, Read, Register, What};
use crate::linux::btf::{Btf, TypeId};
use crate::linux::cgroup::CgroupLayout;
use crate::linux::command_line::CommandLineLayout;
use crate::linux::dwarf::VariablesInScope;
use crate::linux::kernel::Kernel;
use crate::linux::path::PathLayout;
use crate::virt_memory::LONGEST_STRING;
use std::borrow::Cow;
use way::{Way, WayEnd};

/// Where a definition's probe is, and what is known about the kernel.
#[derive(Clone, Copy)]
pub struct CompileContext<'a> {
    /// The function's name, at whose entry or returns the probe is; `None` anywhere else.
    pub function: Option<&'a str>,
    /// What a call of it has, where that is not what the kernel's types say of the function.
    pub signature: Option<&'a Signature>,
    /// How many arguments come before the one that is `$arg1`.
    pub skipped: u8,
    /// Where in a file the probe is.
    pub in_file: FilePlace,
    /// What comes behind `trace_event_raw_` in the name of the structure that the guest's own event is, where the probe is at a
    /// tracepoint that has one.
    pub event: Option<&'a str>,
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Its types, where it has them.
    pub btf: Option<&'a Btf<'a>>,
    /// Those of the function, where they are known: the kernel's, or a program's.
    pub own: Option<&'a Btf<'a>>,
    /// Which variables have names where the probe is, by debugging information: `None` where there is none, a sentence where it
    /// cannot be read. Called no sooner than for a name that is no parameter's.
    pub variables: &'a dyn Fn() -> Result<Option<VariablesInScope>, String>,
}

/// Where in a file a probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePlace {
    /// In the kernel's.
    Kernel,
    /// In a program's, and nobody knows where.
    Unknown,
    /// So many bytes from the start of a program's.
    At(u64),
}

/// What `definition` reads at the hits of its probe at `site`: without arguments of its own, `otherwise`.
///
/// # Errors
/// The first [`Error`]: a symbol, a parameter or a member that there is not, or a value that cannot be read so.
pub fn capture(
    definition: &Definition,
    site: &CompileContext<'_>,
    otherwise: Vec<Field>,
) -> Result<Capture, Error> {
    let compiler = Compiler { site, returns: definition.kind == DefinitionKind::Return };
    let args = compiler.expand(&definition.args)?;
    check_names(&args)?;
    let field = |(index, argument): (usize, &Argument)| {
        let (fetch, shape) = compiler.argument(argument)?;
        Ok(Field { name: argument_name(argument, index), fetch, shape })
    };
    let fields = match args.is_empty() {
        true => otherwise,
        false => args.iter().enumerate().map(field).collect::<Result<Vec<_>, Error>>()?,
    };
    let parameters = site.parameters(definition.kind);
    check_fields(definition, &names(&fields), &names(&parameters))?;
    let mut capture = Capture { fields, ..Capture::default() };
    if let Some(filter) = &definition.filter {
        filter::compile(&filter.value, &parameters, &mut capture)?;
    }
    Ok(capture)
}

/// Makes `filter`, which was written elsewhere, the condition on what `capture` reads at a probe of this kind. It may name
/// `parameters` as well, which are then read besides: those of a [`Site`], where the probe is in a kernel.
///
/// # Errors
/// The first [`Error`] in the filter's own text: a field that there is not, or one that is not compared so.
pub fn filter(
    filter: &ast::FilterExpr,
    kind: DefinitionKind,
    parameters: &[Field],
    capture: &mut Capture,
) -> Result<(), Error> {
    check_filter(kind, filter, &[names(&capture.fields), names(parameters)].concat())?;
    filter::compile(filter, parameters, capture)
}

fn names(fields: &[Field]) -> Vec<&str> {
    fields.iter().map(|field| field.name.as_str()).collect()
}

impl CompileContext<'_> {
    /// What a call of its `function` has.
    ///
    /// # Errors
    /// [`NoArguments`], the reason.
    pub fn signature(&self, btf: &Btf<'_>, function: &str) -> Result<Cow<'_, Signature>, NoArguments> {
        match self.signature {
            Some(signature) => Ok(Cow::Borrowed(signature)),
            None => Signature::of(btf, function).map(Cow::Owned),
        }
    }

    /// What a filter may name besides the fields: the parameters of the function, and the value that it has returned.
    #[must_use]
    pub fn parameters(&self, kind: DefinitionKind) -> Vec<Field> {
        let Some((btf, function)) = self.own.zip(self.function) else { return Vec::new() };
        let Ok(signature) = self.signature(btf, function) else { return Vec::new() };
        let mut parameters = signature.arguments(btf, function, Expand::Small);
        if kind == DefinitionKind::Return {
            // What the stack had when the function was called may have been overwritten.
            let is_kept = |n: u8| Register::of_argument(n.into()).is_some();
            parameters.retain(|field| !matches!(field.fetch.base, Base::Argument(n) if !is_kept(n)));
            let returned = signature.value(btf, function, Expand::Small);
            parameters.extend(returned.map(|field| Field { name: RETURN_VALUE.to_owned(), ..field }));
        }
        let others = self.event_values(&names(&parameters));
        parameters.extend(others);
        parameters
    }
}

struct Compiler<'a> {
    site: &'a CompileContext<'a>,
    returns: bool,
}

impl Compiler<'_> {
    /// The arguments, with the function's parameters in place of `$arg*`, and of each `$argN` that has no name of its own:
    /// that is then shown as the parameter is.
    fn expand(&self, args: &[Argument]) -> Result<Vec<Argument>, Error> {
        let mut expanded = Vec::new();
        for argument in args {
            let span = &argument.fetch.span;
            let parameter = |name| {
                let of = Spanned { value: Variable::Named(name), span: span.clone() };
                let value = FetchExpr::Variable { of, path: Vec::new() };
                Spanned { value, span: span.clone() }
            };
            match argument.fetch.value {
                FetchExpr::AllArguments => {
                    let names = self.parameters(span)?.into_iter().map(|parameter| parameter.name);
                    expanded.extend(names.map(|name| Argument {
                        name: None,
                        fetch: parameter(name),
                        ty: None,
                    }));
                }
                FetchExpr::Argument(n) if argument.name.is_none() => {
                    let known = self.parameters(span).unwrap_or_default();
                    let fetch = match known.get((n as usize).wrapping_sub(1)) {
                        Some(Parameter { name, .. }) if !name.is_empty() => parameter(name.clone()),
                        None if !known.is_empty() => {
                            return Err(self.no_such_parameter(n, known.len(), span));
                        }
                        _ => argument.fetch.clone(),
                    };
                    expanded.push(Argument { fetch, ..argument.clone() });
                }
                _ => expanded.push(argument.clone()),
            }
        }
        Ok(expanded)
    }

    fn no_such_parameter(&self, number: u32, count: usize, span: &Span) -> Error {
        let function = self.site.function.unwrap_or_default().to_owned();
        Error { span: span.clone(), mistake: Mistake::NoSuchParameter { number, function, count } }
    }

    fn argument(&self, argument: &Argument) -> Result<(Fetch, Shape), Error> {
        let span = &argument.fetch.span;
        match (&argument.fetch.value, &argument.ty) {
            (FetchExpr::Comm, _) => Ok((Way::value(Base::Comm).read(Read::Word(0)), Shape::Text)),
            (FetchExpr::Cgroup, _) => match self.site.btf.and_then(CgroupLayout::find) {
                Some(layout) => Ok((Way::value(Base::Cgroup(layout)).read(Read::Word(0)), Shape::Text)),
                None => Err(Error { span: span.clone(), mistake: Mistake::NoTypes }),
            },
            (FetchExpr::CommandLine, _) => match self.site.btf.and_then(CommandLineLayout::find) {
                Some(layout) => Ok((Way::value(Base::CommandLine(layout)).read(Read::Word(0)), Shape::Text)),
                None => Err(Error { span: span.clone(), mistake: Mistake::NoTypes }),
            },
            (FetchExpr::Text(text), _) => {
                Ok((Way::value(Base::Text(text.clone())).read(Read::Word(0)), Shape::Text))
            }
            (FetchExpr::Variable { of, path }, ty) => self.variable(of, path, ty.as_ref(), span),
            (FetchExpr::Cast(cast), ty) => self.cast_value(cast, ty.as_ref(), span),
            (FetchExpr::ReturnValue, ty) => self.return_value(ty.as_ref(), span),
            // What a program has passed is an address here, as it is without a name.
            (FetchExpr::Argument(n), Some(ty))
                if is_text(ty.value.element) && self.saved_argument(*n).is_some() =>
            {
                let way = self.way(&argument.fetch.value, span)?.at(0, false);
                self.typed(way, &ty.value, &ty.span)
            }
            (fetch, None) => self.typed(self.way(fetch, span)?, &HEX, span),
            (fetch, Some(ty)) => self.typed(self.way(fetch, span)?, &ty.value, &ty.span),
        }
    }

    /// Where a value comes from that is no variable.
    fn way(&self, fetch: &FetchExpr, span: &Span) -> Result<Way, Error> {
        let wrong = |mistake| Error { span: span.clone(), mistake };
        Ok(match fetch {
            FetchExpr::Register(name) => Way::value(register(name).ok_or_else(|| {
                wrong(Mistake::UnknownRegister { name: name.clone(), nearest: Vec::new() })
            })?),
            FetchExpr::StackSlot(n) => Way::value(Base::Stack(*n as u16)),
            FetchExpr::StackPointer => Way::value(Base::Register(Register::Rsp)),
            FetchExpr::Argument(n) if let Some(saved) = self.saved_argument(*n) => saved,
            FetchExpr::Argument(n) => {
                let n =
                    u8::try_from(n.saturating_sub(1)).unwrap_or(u8::MAX).saturating_add(self.site.skipped);
                if self.returns && Register::of_argument(usize::from(n)).is_none() {
                    return Err(wrong(Mistake::StackArgumentOfReturn));
                }
                Way::value(Base::Argument(n))
            }
            FetchExpr::ReturnValue if self.returned() == Some(TypeId::VOID) => {
                return Err(wrong(Mistake::ReturnsNothing));
            }
            FetchExpr::ReturnValue => Way::value(Base::Register(Register::Rax)),
            FetchExpr::Number(number) => Way::value(Base::Constant(number.cast_unsigned())),
            FetchExpr::Memory(at) => Way::value(self.address(*at)).at(0, false),
            FetchExpr::FileMemory(offset) => match self.site.in_file {
                FilePlace::Kernel => return Err(wrong(Mistake::FileOffset)),
                FilePlace::Unknown => return Err(wrong(Mistake::UnknownFileOffset)),
                FilePlace::At(place) => Way::value(Base::Place).at(offset.wrapping_sub_unsigned(place), true),
            },
            FetchExpr::Symbol { symbol, offset } => {
                let symbols = self.site.kernel.symbols();
                let found = symbols.find(symbol, |_| true).map_err(|which| {
                    if !which.found.is_empty() {
                        return wrong(Mistake::NotOneSymbol(which));
                    }
                    let nearest = symbols.nearest_of_all(&which.name, 2);
                    let nearest = nearest.into_iter().map(str::to_owned).collect();
                    wrong(Mistake::UnknownSymbol { name: which.name, nearest })
                })?;
                // Per-CPU variables have offsets instead of addresses.
                let base = if found.kind.eq_ignore_ascii_case(&'a') {
                    Base::Constant(found.at.0)
                } else {
                    Base::Kernel(found.at)
                };
                Way::value(base).at(*offset, false)
            }
            FetchExpr::Dereference { offset, user, of } => self.any_way(of)?.at(*offset, *user),
            FetchExpr::Current => Way::value(Base::Current),
            FetchExpr::PerCpu { read, of } => {
                let of_symbol = matches!(of.value, FetchExpr::Symbol { .. } | FetchExpr::Memory(_));
                let way = self.any_way(of)?.per_cpu(of_symbol);
                let way =
                    way.ok_or_else(|| Error { span: of.span.clone(), mistake: Mistake::PerCpuTwice })?;
                if *read { way.at(0, false) } else { way }
            }
            FetchExpr::Comm | FetchExpr::Cgroup | FetchExpr::CommandLine | FetchExpr::Text(_) => {
                return Err(wrong(Mistake::DereferencedText));
            }
            FetchExpr::AllArguments | FetchExpr::Variable { .. } | FetchExpr::Cast(_) => {
                return Err(wrong(Mistake::DressedAllArguments));
            }
        })
    }

    /// Where parameter `n` of a system call is, from 1 on: its handler is called with the place where the kernel has saved it.
    fn saved_argument(&self, n: u32) -> Option<Way> {
        let (btf, function) = self.site.own.zip(self.site.function)?;
        let signature = self.site.signature(btf, function).ok()?;
        match signature.parameters.get((n as usize).checked_sub(1)?)?.place {
            ArgumentPlace::Saved(offset) => Some(Way::value(Base::Argument(0)).at(offset.into(), false)),
            _ => None,
        }
    }

    /// Where any value comes from, to be gone on from.
    fn any_way(&self, fetch: &Spanned<FetchExpr>) -> Result<Way, Error> {
        match &fetch.value {
            FetchExpr::Variable { of, path } => self.variable_way(of, path),
            FetchExpr::Cast(cast) => self.cast_way(cast),
            other => self.way(other, &fetch.span),
        }
    }

    /// An address as the user knows it: in the kernel's image as it was linked.
    fn address(&self, at: u64) -> Base {
        let is_linked =
            self.site.kernel.image().segments().iter().any(|segment| segment.range.contains(&Gva(at)));
        if is_linked { Base::Kernel(Gva(at)) } else { Base::Constant(at) }
    }

    /// How a value is read as `ty`, and shown.
    fn typed(&self, way: Way, ty: &FetchType, span: &Span) -> Result<(Fetch, Shape), Error> {
        let wrong = |mistake| Err(Error { span: span.clone(), mistake });
        match ty.element {
            Element::String | Element::UserString => {
                return match strings(way, ty.element == Element::UserString, ty.count) {
                    Some(found) => Ok(found),
                    None => wrong(Mistake::StringOfValue),
                };
            }
            Element::Dentry | Element::File => {
                let Some(way) = self.name_of(way, ty.element) else { return wrong(Mistake::NoTypes) };
                return Ok(strings(way, false, None).unwrap_or((NOTHING, Shape::Text)));
            }
            Element::Path => {
                // What lies there is one, or else what the value leads to.
                let way = if matches!(way.end, WayEnd::Memory(_)) { way } else { way.at(0, false) };
                let known = self.site.btf.filter(|_| self.site.in_file == FilePlace::Kernel);
                let (Some(layout), WayEnd::Memory(hop)) = (known.and_then(PathLayout::find), way.end) else {
                    return wrong(Mistake::NoTypes);
                };
                return Ok((way.read(Read::Memory(hop, What::Path(layout))), Shape::Text));
            }
            _ => {}
        }
        let (bytes, shape) = element(ty.element);
        let count = ty.count.unwrap_or(1);
        let read = match way.end {
            WayEnd::Memory(hop) => Read::Memory(hop, What::Bytes((u32::from(bytes) * count) as u16)),
            _ if ty.count.is_some() => return wrong(Mistake::ArrayOfValue),
            WayEnd::Value => Read::Word(bytes),
            WayEnd::Address(hop) => Read::Address(hop, bytes),
        };
        let shape = match ty.count {
            Some(count) => Shape::Array { count: count as u16, of: Box::new(shape) },
            None => shape,
        };
        Ok((way.read(read), shape))
    }

    /// The way to the name of a `struct dentry` or `struct file`, to which `way` leads a pointer.
    fn name_of(&self, way: Way, element: Element) -> Option<Way> {
        let btf = self.site.btf?;
        let offset =
            |structure: &str, path: &str| btf.member(structure, path)?.offset().map(u64::cast_signed);
        let way = match element {
            Element::File => way.at(offset("file", "f_path.dentry")?, false),
            _ => way,
        };
        Some(way.at(offset("dentry", "d_name.name")?, false).at(0, false))
    }
}

/// What has no type is shown so.
const HEX: FetchType = FetchType { element: Element::Hex(64), count: None };
const NOTHING: Fetch = Fetch { base: Base::Unknown, hops: Vec::new(), read: Read::Word(0) };

/// A string, or several to which pointers lie side by side.
fn strings(way: Way, user: bool, count: Option<u32>) -> Option<(Fetch, Shape)> {
    let Way { base, hops, end: WayEnd::Memory(hop) } = way else { return None };
    let hop = Hop { user: user || hop.user, ..hop };
    let (read, shape) = match count {
        None => (Read::Memory(hop, What::String(LONGEST_STRING)), Shape::Text),
        // `+8(%di)`: the pointers lie there, the strings where they lead to.
        Some(count) => {
            let shape = Shape::Array { count: count as u16, of: Box::new(Shape::Text) };
            (Read::Memory(hop, What::Strings(count as u16)), shape)
        }
    };
    Some((Fetch { base, hops, read }, shape))
}

/// Whether it is a text that lies in memory.
fn is_text(element: Element) -> bool {
    matches!(element, Element::String | Element::UserString | Element::Path)
}

/// Bytes of a number, and how it is shown.
fn element(element: Element) -> (u8, Shape) {
    match element {
        Element::Unsigned(bits) => (bits / 8, Shape::Unsigned),
        Element::Signed(bits) => (bits / 8, Shape::Signed),
        Element::Hex(bits) => (bits / 8, Shape::Hex),
        Element::Char => (1, Shape::Char),
        Element::Symbol => (8, Shape::Symbol),
        Element::SymbolString => (8, Shape::SymbolText),
        Element::BitField { width, offset, container } => {
            (container / 8, Shape::BitField { low: offset, width, of: Box::new(Shape::Unsigned) })
        }
        Element::String | Element::UserString | Element::Dentry | Element::File | Element::Path => {
            (8, Shape::Hex)
        }
    }
}

/// A register; those that are always the same in the kernel as numbers (arch/x86/include/asm/segment.h).
fn register(name: &str) -> Option<Base> {
    Some(match name {
        "cs" => Base::Constant(0x10),
        "ss" => Base::Constant(0x18),
        "orig_ax" => Base::Constant(u64::MAX),
        name => Base::Register(Register::named(name)?),
    })
}
