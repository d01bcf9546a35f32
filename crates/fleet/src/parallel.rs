//! Work on many items in several threads.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread::{Builder, available_parallelism, scope};

/// Most threads. Further ones would save little beside what is done in one.
const THREADS: usize = 4;

/// Returns what a function makes of each item, in the order of the items.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = available_parallelism().map_or(1, NonZero::get).min(THREADS);
    let of_part = |part: &[T]| part.iter().map(&of).collect::<Vec<R>>();
    scope(|scope| {
        let mut parts = items.chunks(items.len().div_ceil(threads).max(1));
        let first = parts.next().unwrap_or_default();
        let others: Vec<_> =
            parts.map(|part| (part, Builder::new().spawn_scoped(scope, || of_part(part)))).collect();
        let mut all = of_part(first);
        for (part, thread) in others {
            all.extend(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // There is no thread for it.
                Err(_) => of_part(part),
            });
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for count in [0_usize, 1, 2, 3, 7, 1000] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(map(&items, |item| item * 2), (0..count).map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "item 900")]
    fn a_panic_in_a_thread_is_not_lost() {
        let items: Vec<usize> = (0..1000).collect();
        map(&items, |item| assert_ne!(*item, 900, "item {item}"));
    }
}
