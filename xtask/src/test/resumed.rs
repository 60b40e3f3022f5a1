//! How far a long piece has come, in a file: one that is begun again goes on from there.

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};

/// Such a file, in the workspace's `target/`.
pub(super) struct Resumed(PathBuf);

impl Resumed {
    /// That of the piece `name`.
    pub(super) fn of(name: &str) -> Self {
        Self(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../target/long-{name}.json")))
    }

    /// How far the piece had come.
    pub(super) fn read<T: DeserializeOwned + Default>(&self) -> anyhow::Result<T> {
        match fs::read(&self.0) {
            Ok(text) => {
                serde_json::from_slice(&text).with_context(|| format!("cannot read {}", self.0.display()))
            }
            Err(_) => Ok(T::default()),
        }
    }

    /// It has come so far.
    pub(super) fn write(&self, state: &impl Serialize) -> anyhow::Result<()> {
        fs::write(&self.0, serde_json::to_vec(state)?)
            .with_context(|| format!("cannot write {}", self.0.display()))
    }

    /// It has come to its end.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        fs::remove_file(&self.0).with_context(|| format!("cannot remove {}", self.0.display()))
    }
}
