//! Which launches must wait for which, told by the memory that they touch.

/// Launches in the order in which they would run alone, each known by its number.
pub(super) struct After {
    /// Of each memory: who wrote it last, and who has read that.
    memory: Vec<(Option<usize>, Vec<usize>)>,
    /// Of each launch, all that run before it, a bit for each.
    before: Vec<Vec<u64>>,
}

impl After {
    /// So many pieces of memory that do not overlap.
    pub(super) fn new(memory: usize) -> After {
        After { memory: vec![(None, Vec::new()); memory], before: Vec::new() }
    }

    /// The next launch: the fewest of those before it that it must wait for. What it writes it may read as well.
    pub(super) fn next(&mut self, read: &[usize], written: &[usize]) -> Vec<usize> {
        let mut needed: Vec<usize> = Vec::new();
        for &memory in read {
            needed.extend(self.memory[memory].0);
        }
        for &memory in written {
            let (writer, readers) = &self.memory[memory];
            needed.extend(writer);
            needed.extend(readers);
        }
        needed.sort_unstable_by(|one, other| other.cmp(one));
        needed.dedup();
        let number = self.before.len();
        let mut before = vec![0u64; number.div_ceil(64)];
        // The latest first: what they waited for need not be waited for again.
        needed.retain(|&launch| {
            let known = before[launch / 64] >> (launch % 64) & 1 == 1;
            for (bits, more) in before.iter_mut().zip(&self.before[launch]) {
                *bits |= more;
            }
            before[launch / 64] |= 1 << (launch % 64);
            !known
        });
        self.before.push(before);
        for &memory in read {
            self.memory[memory].1.push(number);
        }
        for &memory in written {
            self.memory[memory] = (Some(number), Vec::new());
        }
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::After;

    #[test]
    fn who_reads_waits_for_who_wrote_and_who_writes_for_all_who_touched_it() {
        let mut after = After::new(3);
        assert_eq!(after.next(&[], &[0]), []);
        assert_eq!(after.next(&[0], &[1]), [0]);
        assert_eq!(after.next(&[0], &[2]), [0]);
        // Both have read 0; the writer before them is known through either.
        assert_eq!(after.next(&[], &[0]), [2, 1]);
        assert_eq!(after.next(&[0, 1, 2], &[]), [3]);
    }

    #[test]
    fn launches_that_share_nothing_wait_for_nothing() {
        let mut after = After::new(100);
        for memory in 0..100 {
            assert_eq!(after.next(&[], &[memory]), []);
        }
        let all: Vec<usize> = (0..100).collect();
        assert_eq!(after.next(&all, &[]).len(), 100);
        // One that waits for that one waits for all.
        assert_eq!(after.next(&[], &all), [100]);
    }

    #[test]
    fn what_is_updated_in_place_is_read_too() {
        let mut after = After::new(1);
        assert_eq!(after.next(&[0], &[0]), []);
        assert_eq!(after.next(&[0], &[0]), [0]);
        assert_eq!(after.next(&[0], &[]), [1]);
        assert_eq!(after.next(&[0], &[]), [1]);
        assert_eq!(after.next(&[0], &[0]), [3, 2]);
    }
}
