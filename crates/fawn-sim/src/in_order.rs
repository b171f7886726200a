//! A job for each item, several at a time; the results are handed over in the order of the items.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// Runs `job` for `items` on so many threads, and hands each result to `take` in the order of the items, until it
/// returns false. No item is begun once `is_over` of its index. Returns whether `take` never returned false.
///
/// Items are begun in their order, so the first result that is not good is the same on any number of threads.
pub fn in_order<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    is_over: impl Fn(usize) -> bool + Sync,
    job: impl Fn(&T) -> R + Sync,
    mut take: impl FnMut(&T, R) -> bool,
) -> bool {
    let (next, has_ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            let (sender, next, has_ended, is_over, job) = (sender.clone(), &next, &has_ended, &is_over, &job);
            scope.spawn(move || {
                while !has_ended.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at).filter(|_| !is_over(at)) else { return };
                    if sender.send((at, job(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let (mut early, mut due) = (BTreeMap::new(), 0);
        for (at, result) in receiver {
            early.insert(at, result);
            while let Some(result) = early.remove(&due) {
                if !take(&items[due], result) {
                    has_ended.store(true, Ordering::Relaxed);
                    return false;
                }
                due += 1;
            }
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn results_come_in_order_up_to_the_first_bad_one() {
        let items: Vec<u64> = (0..100).collect();
        for threads in [1, 2, 7, 200] {
            let mut taken = Vec::new();
            // The earlier an item, the longer it takes.
            let slow = |item: &u64| {
                (0..(100 - item) * 1_000).for_each(|step| _ = std::hint::black_box(step));
                *item
            };
            let passed = in_order(
                &items,
                threads,
                |_| false,
                slow,
                |item, result| {
                    taken.push(*item);
                    result == *item && *item < 60
                },
            );
            assert!(!passed);
            assert_eq!(taken, (0..=60).collect::<Vec<u64>>(), "{threads} threads");
            assert!(in_order(&items, threads, |_| false, |item| *item, |_, _| true));
            assert!(in_order(&items, threads, |_| true, |item| *item, |_, _| panic!("none is begun")));
        }
    }
}
