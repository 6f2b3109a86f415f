//! What is made once and kept: texts of CUDA modules, and plans by what they are for.

use dittograd_device::cuda::Source;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

/// A text that is kept for good, as compiled kernels are.
fn lasting(text: String) -> &'static str {
    text.leak()
}

/// A module with a text of its own, called by its family and the hash of that text.
#[derive(Clone)]
pub(crate) struct Generated {
    pub name: Arc<str>,
    pub source: &'static str,
}

impl Generated {
    /// The module of `text`, which comes after `prelude`.
    pub(crate) fn new(family: &str, prelude: &str, text: &str) -> Generated {
        let name = format!("{family}_{}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
        Generated { name: name.into(), source: lasting(format!("{prelude}{text}")) }
    }

    /// Name and text.
    pub(crate) fn source(&self) -> Source {
        (self.name.to_string(), self.source)
    }
}

/// A module by a name that stands for its text. The text is made once: making it costs more than a launch.
#[doc(hidden)]
pub fn module(name: String, make: impl FnOnce() -> String) -> Source {
    static TEXTS: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());
    let texts = || TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = texts().get(&name).copied() {
        debug_assert!(make() == text, "two texts for module {name}");
        return (name, text);
    }
    let text = lasting(make());
    texts().insert(name.clone(), text);
    (name, text)
}

/// Most that [`known`] keeps of a kind.
const MOST_KNOWN: usize = 1 << 12;

/// Things that were made, by what they were made of.
pub(crate) type Known<K, V> = LazyLock<RwLock<HashMap<K, V>>>;

/// What was made of `key` before, or is made now: eager steps ask for the same again and again.
pub(crate) fn known<K: Hash + Eq, V: Clone>(all: &Known<K, V>, key: K, make: impl FnOnce(&K) -> V) -> V {
    if let Some(known) = find(all, &key) {
        return known;
    }
    let made = make(&key);
    keep(all, key, made.clone());
    made
}

// Apart from `known`, so that they are compiled once for a kind of key, not for every closure.
fn find<K: Hash + Eq, V: Clone>(all: &Known<K, V>, key: &K) -> Option<V> {
    all.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

fn keep<K: Hash + Eq, V: Clone>(all: &Known<K, V>, key: K, made: V) {
    let mut all = all.write().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MOST_KNOWN {
        all.clear();
    }
    all.insert(key, made);
}
