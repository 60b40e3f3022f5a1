//! Known races: what they need is built here.

use super::guests::Guests;
use crate::kernels::RECIPES;
use crate::setup;
use anyhow::Context as _;
use guest_kernels::Cache;

/// The kernel without the fix of one of them.
const KERNEL: &str = "racy";

/// Builds them, and has them forced.
pub(super) fn run(guests: Guests<'_>) -> anyhow::Result<()> {
    let image = Cache::open()?.kernel(guests.kernel)?.record.package;
    let release = image.strip_prefix("linux-image-").context("the kernel is in another package")?;
    let headers = format!("linux-headers-{release}");
    setup::install(&[(&headers, "building a module of the tests")])?;
    let recipe = RECIPES.iter().find(|recipe| recipe.name == KERNEL).context("no such kernel")?;
    recipe.bring(guests.start)?;
    let built = recipe.built()?.context("it is not built")?;
    let headers = format!("/usr/src/{headers}");
    guests.long_product_with(
        "known_races",
        &[("VMM_KERNEL_HEADERS", headers.as_ref()), (&recipe.variable(), built.as_ref())],
    )
}
