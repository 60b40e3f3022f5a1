//! How many instructions a detour may add to a call. The same code always takes the same number: more than that fails the
//! benchmark. Times and ratios are the machine's, and are only shown.

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// A row of the probed kernel, and how much it may be above the unprobed call. `docs/detours.md` says the same numbers.
const GOALS: [(&str, u32); 2] = [("getppid, counted by a detour", 11), ("getppid, recorded by a detour", 77)];

/// Shows how far each of these rows is from its goal.
///
/// # Errors
/// When one is above its goal, is missing, or was not measured on a detour.
pub(super) fn check(rows: &[Value]) -> anyhow::Result<()> {
    let mut above = Vec::new();
    for (name, goal) in GOALS {
        let row = rows.iter().find(|row| row["row"] == name).with_context(|| format!("no row `{name}`"))?;
        ensure!(row["on"] == "detour", "`{name}` was measured on a {}", row["on"]);
        let added = row["added"].as_f64().with_context(|| format!("`{name}` has no figure"))?;
        let said = format!("{name}: {added:.1} instructions more than unprobed (goal: {goal} at most)");
        println!("bench: {said}");
        if added > goal.into() {
            above.push(said);
        }
    }
    ensure!(above.is_empty(), "above the goal:\n{}", above.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    /// The rows of the goals, each with so many instructions more than its goal.
    fn rows(more: [f64; 2]) -> Vec<Value> {
        let rows = GOALS.iter().zip(more);
        rows.map(
            |((name, goal), more)| json!({ "row": name, "on": "detour", "added": f64::from(*goal) + more }),
        )
        .collect()
    }

    #[test]
    fn a_row_above_its_goal_fails_and_is_named() {
        check(&rows([0.0, -1.0])).unwrap();
        let [count, record] = GOALS.map(|(name, _)| name);
        let error = check(&rows([0.2, 0.0])).unwrap_err().to_string();
        assert!(error.contains(count) && !error.contains(record), "{error}");
        let error = check(&rows([1.0, 0.2])).unwrap_err().to_string();
        assert!(error.contains(count) && error.contains(record), "{error}");
    }

    #[test]
    fn a_row_that_is_missing_or_of_a_trap_fails() {
        assert!(check(&rows([0.0; 2])[..1]).is_err());
        let mut trapped = rows([0.0; 2]);
        trapped[1]["on"] = json!("trap");
        assert!(check(&trapped).is_err());
    }

    #[test]
    fn the_page_says_these_numbers() {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/detours.md")).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let [(_, count), (_, record)] = GOALS;
        let said = format!("A count takes {count} instructions, a record {record} and");
        assert!(page.contains(&said), "{said}");
    }
}
