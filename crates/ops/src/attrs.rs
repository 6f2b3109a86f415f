//! Attributes of ops by name, as graph texts and the program have them.

use dittograd_numerics::error::{Error, Result};

/// A named attribute value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// A number.
    Num(f64),
    /// A whole number that may be too large for a float: a seed.
    Whole(u64),
    /// A truth value.
    Bool(bool),
    /// A list of sizes or axes.
    List(Vec<usize>),
}

/// The attributes of an op by name, as the program reads and prints them.
#[derive(Clone, Debug, Default)]
pub struct Attrs(pub Vec<(String, Attr)>);

impl Attrs {
    pub(crate) fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, a)| a)
    }

    /// The number called `name`.
    pub fn num(&self, name: &'static str) -> Result<f64> {
        match self.get(name) {
            Some(Attr::Num(x)) => Ok(*x),
            Some(Attr::Whole(x)) => Ok(*x as f64),
            _ => Err(Error::argument("attributes", name, "a number is needed")),
        }
    }

    /// Whether there is an attribute called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The whole number called `name`, with all its bits.
    pub fn word(&self, name: &'static str) -> Result<u64> {
        match self.get(name) {
            Some(Attr::Num(x)) if *x >= 0.0 && x.fract() == 0.0 && *x < 9_007_199_254_740_992.0 => {
                Ok(*x as u64)
            }
            Some(Attr::Whole(x)) => Ok(*x),
            _ => Err(Error::argument("attributes", name, "a whole number from 0 is needed")),
        }
    }

    /// The whole number called `name`, as a size.
    pub fn whole(&self, name: &'static str) -> Result<usize> {
        let small = self.word(name)?;
        match usize::try_from(small) {
            Ok(n) if small < 1 << f64::MANTISSA_DIGITS => Ok(n),
            _ => Err(Error::argument("attributes", name, "a whole number below 2^53 is needed")),
        }
    }

    /// The truth value called `name`, false if absent.
    pub fn flag(&self, name: &'static str) -> Result<bool> {
        match self.get(name) {
            Some(Attr::Bool(x)) => Ok(*x),
            None => Ok(false),
            _ => Err(Error::argument("attributes", name, "true or false is needed")),
        }
    }

    /// The list called `name`.
    pub fn list(&self, name: &'static str) -> Result<Vec<usize>> {
        match self.get(name) {
            Some(Attr::List(x)) => Ok(x.clone()),
            _ => Err(Error::argument("attributes", name, "a list of whole numbers is needed")),
        }
    }

    /// Errors if an attribute is given that is not in `known`.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.0.iter().find(|(n, _)| !known.contains(&n.as_str())) {
            None => Ok(()),
            Some((n, _)) => {
                Err(Error::argument("attributes", "name", format!("`{n}` is not one of {known:?}")))
            }
        }
    }
}
