//! What a recording tells of a probe that was asked for.

use crate::record::{Address, Field, Histogram, Kind, Probe, Style};
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{Action, Trigger};
use probe_engine::request::{self, ProbeRequest};

/// The probe `asked`, registered as number `id`.
pub(super) fn registered(id: u32, asked: &ProbeRequest) -> Probe {
    let (module, address) = match &asked.place {
        Place::Kernel { info, .. } => (None, Some(Address(info.at.0))),
        Place::Module { module, .. } => (Some(module.clone()), None),
        Place::Watch(watch) => (None, Some(Address(watch.at.0))),
    };
    let (style, event) = match &asked.style {
        request::Style::Registers => (Style::Registers, None),
        request::Style::Call => (Style::Call, None),
        request::Style::Event(name) => (Style::Event, Some(name.clone())),
        request::Style::Graph => (Style::Graph, None),
    };
    let histogram = asked.counted.as_ref().zip(asked.plan.histogram());
    let histogram = histogram
        .map(|(counted, plan)| Histogram { name: counted.name.clone(), definition: plan.said.clone() });
    let fields = asked.plan.capture.fields.iter().map(|field| Field {
        name: field.name.clone(),
        r#type: field.type_name(),
        shape: field.shape.clone(),
    });
    Probe {
        id,
        probe: asked.name(),
        place: asked.place_name(),
        kind: match asked.plan.trigger {
            // The guest's kernel follows the calls of programs.
            Trigger::Pass if asked.is_return_of_program() => Kind::Return,
            Trigger::Pass => Kind::Instruction,
            Trigger::Return { .. } => Kind::Return,
            Trigger::Access => Kind::Watch,
        },
        event,
        style,
        module,
        pattern: asked.pattern.clone(),
        address,
        shown: matches!(asked.plan.action, Action::Record { .. }),
        histogram,
        rule: asked.rule.as_ref().map(|rule| rule.name.clone()),
        message: asked.rule.as_ref().and_then(|rule| rule.message.clone()),
        tags: asked.rule.as_ref().map(|rule| rule.tags.clone()).unwrap_or_default(),
        injected: asked.injected.as_ref().map(|injected| injected.value.clone()),
        fields: fields.collect(),
    }
}
