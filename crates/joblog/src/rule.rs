//! What a row of the table of error texts says.

/// Where the cause of an error lies, as far as a text can tell. A text is never evidence against a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Application,
    /// The job's input: a sample, a checkpoint, a path.
    Data,
    /// Memory of the GPU or of the host.
    Memory,
    /// The node's hardware or driver.
    Node,
    Network,
    /// A file system.
    Storage,
    /// What the site installed: libraries, drivers, containers.
    Site,
}

impl Class {
    /// As reports name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Application => "application",
            Class::Data => "data",
            Class::Memory => "memory",
            Class::Node => "node",
            Class::Network => "network",
            Class::Storage => "storage",
            Class::Site => "site",
        }
    }
}

/// Hardware that an error text points at. Only the gate's findings show whether it is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardware {
    Gpu,
    /// A port, or a link between two.
    Port,
    /// A whole node.
    Node,
}

/// How a line stands to the failure, the cause first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It can be the first error.
    Cause,
    /// A launcher reports that a process ended: which one is known, not why.
    /// Also an exception that only points at another one, a command of the script that fails, and a line that a program calls an error:
    /// named if there is no cause.
    Exit,
    /// It follows from an error elsewhere: a peer that closed its connection, a timeout of a collective.
    Consequence,
    /// An error that programs often catch, or a part of another error's text.
    Detail,
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Stable, kebab-case.
    pub id: &'static str,
    pub class: Class,
    pub kind: Kind,
    /// What to do; empty where the message itself is all there is.
    pub advice: &'static str,
    /// The hardware that the text points at.
    pub points_at: Option<Hardware>,
    /// A regular expression, searched in the line without its label.
    pub(crate) pattern: &'static str,
}

pub(crate) const fn cause(
    id: &'static str,
    class: Class,
    pattern: &'static str,
    advice: &'static str,
) -> Rule {
    Rule { id, class, kind: Kind::Cause, advice, points_at: None, pattern }
}

/// A row whose text points at hardware.
pub(crate) const fn points_at(part: Hardware, rule: Rule) -> Rule {
    Rule { points_at: Some(part), ..rule }
}

pub(crate) const fn follows(id: &'static str, pattern: &'static str) -> Rule {
    Rule { id, class: Class::Network, kind: Kind::Consequence, advice: "", points_at: None, pattern }
}

pub(crate) const fn exit(id: &'static str, pattern: &'static str) -> Rule {
    Rule { id, class: Class::Application, kind: Kind::Exit, advice: "", points_at: None, pattern }
}

pub(crate) const fn detail(id: &'static str, pattern: &'static str) -> Rule {
    Rule { id, class: Class::Application, kind: Kind::Detail, advice: "", points_at: None, pattern }
}
