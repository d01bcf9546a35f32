//! Arguments whose values a shell completes, though others are accepted too: templates of the site, names of nodes.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};

/// Completions for `railgate generate`. Other values are accepted; the command itself reports an unknown one, with
/// similar names.
#[derive(Clone, Debug)]
pub(crate) struct Offered(Vec<&'static str>);

impl Offered {
    /// Creates the list; the order is kept.
    pub(crate) fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        Offered(names.into_iter().collect())
    }
}

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}
