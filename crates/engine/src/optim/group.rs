//! Groups: parameters with options of their own.

use super::rules::{Rule, finite};
use crate::params::Param;
use dittograd_numerics::error::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// What an optimizer does with a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Options {
    pub rule: Rule,
    pub lr: f64,
    pub weight_decay: f64,
    pub decoupled: bool,
}

impl Options {
    #[track_caller]
    pub(super) fn check(&self) -> Result<()> {
        finite("lr", self.lr)?;
        finite("weight_decay", self.weight_decay)?;
        self.rule.check(self.decoupled)
    }
}

/// Some of the parameters, and what is different for them. A parameter may be in one group only; those in none
/// follow the optimizer's own options.
#[derive(Clone)]
pub struct Group {
    members: Members,
    rule: Option<Rule>,
    lr: Option<f64>,
    weight_decay: Option<f64>,
    decoupled: Option<bool>,
}

type Predicate = Arc<dyn Fn(&Param) -> bool + Send + Sync>;

#[derive(Clone)]
enum Members {
    Names(Vec<String>),
    Prefix(String),
    Matching(Predicate),
}

impl Group {
    fn of(members: Members) -> Group {
        Group { members, rule: None, lr: None, weight_decay: None, decoupled: None }
    }

    /// The parameters of these names. One that is not there is an error at the first step.
    pub fn names(names: &[&str]) -> Group {
        Group::of(Members::Names(names.iter().map(|n| n.to_string()).collect()))
    }

    /// The parameters whose names begin so. None is an error at the first step.
    pub fn prefix(prefix: &str) -> Group {
        Group::of(Members::Prefix(prefix.to_string()))
    }

    /// The parameters for which `f` holds, which may be none.
    pub fn matching(f: impl Fn(&Param) -> bool + Send + Sync + 'static) -> Group {
        Group::of(Members::Matching(Arc::new(f)))
    }

    /// With another learning rate.
    pub fn lr(mut self, lr: f64) -> Group {
        self.lr = Some(lr);
        self
    }

    /// With another weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Group {
        self.weight_decay = Some(weight_decay);
        self
    }

    /// With weight decay apart from the gradient, or added to it.
    pub fn decoupled(mut self, decoupled: bool) -> Group {
        self.decoupled = Some(decoupled);
        self
    }

    /// With another rule.
    pub fn rule(mut self, rule: impl Into<Rule>) -> Group {
        self.rule = Some(rule.into());
        self
    }

    pub(super) fn own_lr(&self) -> Option<f64> {
        self.lr
    }

    pub(super) fn set_own_lr(&mut self, lr: Option<f64>) {
        self.lr = lr;
    }

    /// The options of its members, where `all` are those of the optimizer.
    pub(super) fn options(&self, all: Options) -> Options {
        let rule = self.rule.unwrap_or(all.rule);
        let usual = if self.rule.is_some() { all.decoupled || rule.decouples() } else { all.decoupled };
        Options {
            rule,
            lr: self.lr.unwrap_or(all.lr),
            weight_decay: self.weight_decay.unwrap_or(all.weight_decay),
            decoupled: self.decoupled.unwrap_or(usual),
        }
    }

    pub(super) fn takes(&self, p: &Param) -> bool {
        match &self.members {
            Members::Names(names) => names.iter().any(|n| n == p.name()),
            Members::Prefix(prefix) => p.name().starts_with(prefix),
            Members::Matching(f) => f(p),
        }
    }

    /// Errors if it names a parameter that is not there.
    #[track_caller]
    pub(super) fn check_known(&self, params: &[&Param]) -> Result<()> {
        let missing = match &self.members {
            Members::Names(names) => names.iter().find(|n| !params.iter().any(|p| p.name() == **n)),
            Members::Prefix(prefix) => {
                Some(prefix).filter(|s| !params.iter().any(|p| p.name().starts_with(&***s)))
            }
            Members::Matching(_) => None,
        };
        match missing {
            None => Ok(()),
            Some(name) => {
                let why = format!("there is no parameter `{name}`");
                Err(Error::argument("optimizer", "group", why))
            }
        }
    }
}

/// For each parameter the group it is in, if it is in any.
#[track_caller]
pub(super) fn resolve(groups: &[Group], params: &[&Param]) -> Result<Vec<Option<usize>>> {
    groups.iter().try_for_each(|g| g.check_known(params))?;
    let of = |p: &&Param| {
        let mut mine = groups.iter().enumerate().filter(|(_, g)| g.takes(p)).map(|(i, _)| i);
        match (mine.next(), mine.next()) {
            (Some(a), Some(b)) => {
                let why = format!("parameter {} is in groups {a} and {b}", p.name());
                Err(Error::argument("optimizer", "group", why))
            }
            (first, _) => Ok(first),
        }
    };
    params.iter().map(of).collect()
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = match &self.members {
            Members::Names(names) => names.join(", "),
            Members::Prefix(prefix) => format!("{prefix}…"),
            Members::Matching(_) => "a predicate".to_string(),
        };
        write!(f, "Group({members}, lr {:?}, weight decay {:?})", self.lr, self.weight_decay)
    }
}
