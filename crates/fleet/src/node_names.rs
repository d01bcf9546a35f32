//! The names of an attempt's nodes.

use std::fmt;

use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names of nodes, in order; in files a list of strings.
///
/// In one piece of memory: the attempts of a large history have millions of names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NodeNames {
    /// The names one after the other.
    text: String,
    /// Where each name ends.
    ends: Vec<usize>,
}

impl NodeNames {
    /// Returns the names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(from, to)| self.text.get(from..*to).unwrap_or_default())
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns whether a node is among them.
    pub fn contains(&self, node: &str) -> bool {
        self.iter().any(|name| name == node)
    }

    fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len());
    }
}

impl<N: AsRef<str>> FromIterator<N> for NodeNames {
    fn from_iter<I: IntoIterator<Item = N>>(from: I) -> NodeNames {
        let mut names = NodeNames::default();
        for name in from {
            names.push(name.as_ref());
        }
        names
    }
}

impl fmt::Debug for NodeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for NodeNames {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for NodeNames {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<NodeNames, D::Error> {
        from.deserialize_seq(List)
    }
}

struct List;

impl<'de> Visitor<'de> for List {
    type Value = NodeNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names of nodes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NodeNames, A::Error> {
        // Room for a small job: with less, the pieces would be moved again and again.
        let mut names = NodeNames { text: String::with_capacity(128), ends: Vec::with_capacity(16) };
        while list.next_element_seed(Next(&mut names))?.is_some() {}
        names.text.shrink_to_fit();
        names.ends.shrink_to_fit();
        Ok(names)
    }
}

/// Adds the next name of a list, without memory of its own.
struct Next<'a>(&'a mut NodeNames);

impl<'de> DeserializeSeed<'de> for Next<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Next<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a node")
    }

    fn visit_str<E>(self, name: &str) -> Result<(), E> {
        self.0.push(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_files_names_are_a_list_of_strings() {
        let text = r#"["gn1","","gn\u00e4\n2"]"#;
        let names: NodeNames = serde_json::from_str(text).unwrap();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["gn1", "", "gnä\n2"]);
        assert_eq!((names.len(), names.is_empty()), (3, false));
        assert!(names.contains("gn1") && !names.contains("gn"));
        assert_eq!(format!("{names:?}"), format!("{:?}", ["gn1", "", "gnä\n2"]));
        assert_eq!(serde_json::to_string(&names).unwrap(), r#"["gn1","","gnä\n2"]"#);
        // Where one name ends is part of it.
        assert_ne!(["a", "bc"].iter().collect::<NodeNames>(), ["ab", "c"].iter().collect());
        for wrong in ["[1]", "7", r#"["gn1""#, r#"[["gn1"]]"#] {
            assert!(serde_json::from_str::<NodeNames>(wrong).is_err(), "{wrong}");
        }
    }
}
