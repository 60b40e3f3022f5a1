//! An order that is imposed: which probes have turns in it.

use crate::args::Imposed;
use crate::say::say;
use probe_engine::probe::pace::Pace;
use probe_engine::probe::plan::Trigger;
use probe_engine::probe::turns::ObservedTurns;
use probe_engine::request::ProbeRequest;

/// Gives `probes` their turns, and says in which order; none where these are other probes.
pub(crate) fn order(imposed: Option<&Imposed>, probes: &mut [ProbeRequest]) -> Option<ObservedTurns> {
    let Imposed { order, probes: names, within } = imposed?;
    let is_its =
        |(id, name): (&u32, &String)| probes.get(*id as usize).is_some_and(|asked| asked.name() == *name);
    if !names.iter().all(is_its) {
        say("the order is not imposed: this kernel has other probes for these words");
        return None;
    }
    let mut order = order.clone();
    let mut has_turns = vec![false; probes.len()];
    for (asked, has_turns) in probes.iter_mut().zip(&mut has_turns) {
        // Who is held by the user's own words is held by these.
        let is_free = matches!(asked.plan.pace, None | Some(Pace::Delay(_)));
        *has_turns = is_free && asked.plan.trigger == Trigger::Pass && !asked.plan.once;
        if *has_turns {
            asked.plan.pace = Some(Pace::Turn { within: *within });
        }
    }
    order.turns.retain(|turn| has_turns.get(turn.probe as usize).is_some_and(|has_turns| *has_turns));
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::probe::place::{Place, SiteInfo};
    use probe_engine::probe::turns::{TaskKey, Turn};
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn probe(name: &str, trigger: Trigger) -> ProbeRequest {
        let info = SiteInfo::entry_of(Gva(0x1000)..Gva(0x1040));
        ProbeRequest::plain(Place::Kernel { name: name.to_owned(), info }, trigger)
    }

    #[test]
    fn passes_have_turns_and_returns_have_not() {
        let within = Duration::from_secs(1);
        let tasks = vec![TaskKey { comm: [0; 16], probe: 0, before: 0 }];
        let turns = [0, 1, 0].map(|probe| Turn { probe, task: 0 }).to_vec();
        let mut probes = [probe("a", Trigger::Pass), probe("b", Trigger::Return { max_active: None })];
        let names: BTreeMap<u32, String> = (0..).zip(probes.iter().map(ProbeRequest::name)).collect();
        let imposed = Imposed { order: ObservedTurns { tasks, turns }, probes: names, within };
        let order = order(Some(&imposed), &mut probes).unwrap();
        assert_eq!(order.turns, [0, 0].map(|probe| Turn { probe, task: 0 }));
        assert_eq!(probes[0].plan.pace, Some(Pace::Turn { within }));
        assert_eq!(probes[1].plan.pace, None);
        assert!(super::order(Some(&imposed), &mut probes[1..]).is_none(), "other probes");
        assert!(super::order(None, &mut probes).is_none());
    }
}
