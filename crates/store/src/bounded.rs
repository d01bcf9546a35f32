//! Deserializes fields of user-written files in bounded memory.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// The first `N` elements of a list; the rest is skipped.
pub(super) struct Few<T, const N: usize>(pub(super) Vec<T>);

impl<T, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Few(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Few<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
            type Value = Few<T, N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < N {
                    match list.next_element()? {
                        Some(element) => kept.push(element),
                        None => return Ok(Few(kept)),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Few(kept))
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// The first characters of a text; the rest is dropped.
#[derive(Default)]
pub(super) struct Short(pub(super) String);

impl Short {
    const MOST: usize = 300;
}

impl<'de> Deserialize<'de> for Short {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Short;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Short(text.chars().take(Short::MOST).collect()))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_is_skipped_and_later_fields_are_read() {
        let (few, after): (Few<u32, 3>, u32) = serde_json::from_str("[[1,2,3,\"x\",{}],7]").unwrap();
        assert_eq!((few.0, after), (vec![1, 2, 3], 7));
        let text = format!("\"{}\"", "é".repeat(1000));
        assert_eq!(serde_json::from_str::<Short>(&text).unwrap().0.chars().count(), Short::MOST);
    }
}
