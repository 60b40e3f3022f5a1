//! What a system call has by its types: the kernel keeps these in words, and its handler has but the registers.

use crate::capture::argument_place::{ArgumentPlace, Places};
use crate::capture::typed::{Parameter, Signature};
use crate::linux::btf::{Btf, Kind, TypeId};
use crate::linux::syscalls::SystemCall;

/// The members of `struct pt_regs` in which a 64-bit program has its arguments.
const ARGUMENTS: [&str; 6] = ["di", "si", "dx", "r10", "r8", "r9"];

/// What a call at the handler of `call` has; `None` where nothing is known of the registers.
pub(super) fn signature(call: &SystemCall, btf: &Btf<'_>) -> Option<Signature> {
    let handler = &call.handler;
    // The function of one without parameters has one, which it does not use.
    if !handler.takes_registers
        && call.parameters.as_ref().is_none_or(|parameters| !parameters.is_empty())
        && let Ok(signature) = Signature::of(btf, &handler.symbol)
    {
        return Some(signature);
    }
    let word = type_of(btf, "unsigned long")?;
    let unnamed = || (0..ARGUMENTS.len()).map(|_| (String::new(), String::new())).collect();
    let mut places = Places::default();
    let parameters = call.parameters.clone().unwrap_or_else(unnamed).into_iter().zip(ARGUMENTS);
    let parameter = |((ty, name), register): ((String, String), &str)| {
        let ty = type_of(btf, &ty).unwrap_or(word);
        let place = match handler.takes_registers {
            true => ArgumentPlace::Saved(btf.member("pt_regs", register)?.offset()?.try_into().ok()?),
            false => places.next(btf, Some(ty)),
        };
        Some(Parameter { name, ty, place })
    };
    let parameters = parameters.map(parameter).collect::<Option<_>>()?;
    Some(Signature { parameters, returns: Some(type_of(btf, "long")?), is_kernels: true })
}

/// The type that is written so in C.
fn type_of(btf: &Btf<'_>, written: &str) -> Option<TypeId> {
    let stars = written.matches('*').count();
    let is_const = written.split([' ', '*']).any(|word| word == "const");
    let words = written.split([' ', '*']).filter(|word| !matches!(*word, "" | "const" | "__user"));
    let words: Vec<&str> = words.collect();
    let of = match words.as_slice() {
        ["void"] => TypeId::VOID,
        ["struct" | "union", name] => {
            btf.named(name).find(|ty| matches!(ty.kind, Kind::Structure(_) | Kind::Forward { .. }))?.id
        }
        ["enum", name] => btf.named(name).find(|ty| matches!(ty.kind, Kind::Enumeration(_)))?.id,
        words => {
            let name = match words.join(" ").as_str() {
                "unsigned" => "unsigned int".to_owned(),
                "long" => "long int".to_owned(),
                "unsigned long" => "long unsigned int".to_owned(),
                "long long" => "long long int".to_owned(),
                "unsigned long long" => "long long unsigned int".to_owned(),
                "short" => "short int".to_owned(),
                "unsigned short" => "short unsigned int".to_owned(),
                other => other.to_owned(),
            };
            btf.named(&name).find(|ty| matches!(ty.kind, Kind::Int(_) | Kind::Typedef(_)))?.id
        }
    };
    match stars {
        0 => Some(of),
        1 => pointer_to(btf, of, is_const),
        _ => None,
    }
}

/// A pointer to that, of which the kernel's types have some but for rare ones.
fn pointer_to(btf: &Btf<'_>, of: TypeId, is_const: bool) -> Option<TypeId> {
    let mut others = None;
    for ty in btf.types() {
        let Kind::Pointer(to) = ty.kind else { continue };
        let target = btf.get(to).map(|target| target.kind);
        match target {
            Some(Kind::Modifier { ty: inner, .. }) if inner == of && is_const => return Some(ty.id),
            _ if to == of && !is_const => return Some(ty.id),
            Some(Kind::Modifier { ty: inner, .. }) if inner == of => others = others.or(Some(ty.id)),
            _ if to == of => others = others.or(Some(ty.id)),
            _ => {}
        }
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Gva;
    use crate::linux::syscalls::Handler;
    use crate::linux::testing::BtfBuilder;

    /// What `long f(const char *name, struct how *how, unsigned long n)` has where its handler takes the registers or not.
    fn places(takes_registers: bool) -> Vec<(String, ArgumentPlace)> {
        let mut btf = BtfBuilder::default();
        let long = btf.int("long unsigned int", 8);
        btf.int("long int", 8);
        let char = btf.int("char", 1);
        let constant = btf.add("", 10, 0, false, char, &[]);
        let text = btf.pointer(constant);
        btf.pointer(char);
        let how = btf.structure("how", 8, &[("flags", long, 0)]);
        let pointer = btf.pointer(how);
        let registers: Vec<_> = (0..).zip(ARGUMENTS).map(|(n, name)| (name, long, 8 * n)).collect();
        btf.structure("pt_regs", 48, &registers);
        let section = btf.finish();
        let btf = Btf::parse(&section).unwrap();
        for (written, ty) in [
            ("const char *", Some(text)),
            ("char const *", Some(text)),
            ("const char __user *", Some(text)),
            ("struct how *", Some(pointer)),
            ("unsigned long", Some(long)),
            ("struct none *", None),
            ("char **", None),
            ("", None),
        ] {
            assert_eq!(type_of(&btf, written), ty.map(TypeId), "{written}");
        }
        let parameters = [("const char *", "name"), ("struct how *", "how"), ("size_t", "n")];
        let call = SystemCall {
            name: "f".to_owned(),
            number: None,
            handler: Handler { symbol: "__x64_sys_f".to_owned(), at: Gva(0), takes_registers },
            compat: None,
            parameters: Some(parameters.map(|(ty, name)| (ty.to_owned(), name.to_owned())).to_vec()),
        };
        let signature = signature(&call, &btf).unwrap();
        signature.parameters.into_iter().map(|own| (own.name, own.place)).collect()
    }

    #[test]
    fn parameters_are_in_the_programs_registers_or_in_the_handlers_own() {
        let named = |places: [ArgumentPlace; 3]| -> Vec<_> {
            ["name", "how", "n"].into_iter().map(str::to_owned).zip(places).collect()
        };
        assert_eq!(places(true), named([0, 8, 16].map(ArgumentPlace::Saved)));
        assert_eq!(places(false), named([0, 1, 2].map(ArgumentPlace::Slot)));
    }
}
