//! Queues of frames: three doubly linked lists (free, small, main) threaded through one array of links.

const NONE: u32 = u32::MAX;
const USES_MASK: u8 = 3;
const QUEUE_SHIFT: u8 = 2;

/// The queue that a frame is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum CacheQueue {
    /// Frames without a page.
    Free,
    /// Pages used once; a scan passes through this queue.
    Small,
    /// Pages used again.
    Main,
}

const QUEUES: [CacheQueue; 3] = [CacheQueue::Free, CacheQueue::Small, CacheQueue::Main];

#[derive(Clone, Copy)]
struct QueueLink {
    before: u32,
    after: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    len: usize,
}

/// Memory per frame, bytes.
pub(super) const QUEUE_BYTES: usize = size_of::<QueueLink>() + 1;

/// Three queues; every frame is in exactly one of them and has a use count (0 to 3).
pub(super) struct Queues {
    links: Vec<QueueLink>,
    /// Use count in the low bits, queue above.
    marks: Vec<u8>,
    ends: [Ends; 3],
}

impl Queues {
    pub(super) const fn new() -> Self {
        Self { links: Vec::new(), marks: Vec::new(), ends: [Ends { first: NONE, last: NONE, len: 0 }; 3] }
    }

    pub(super) const fn len(&self, queue: CacheQueue) -> usize {
        self.ends[queue as usize].len
    }

    pub(super) fn queue_of(&self, frame: u32) -> CacheQueue {
        QUEUES[(self.marks[frame as usize] >> QUEUE_SHIFT) as usize]
    }

    pub(super) fn reserve(&mut self, frames: usize) {
        self.links.reserve_exact(frames.saturating_sub(self.links.len()));
        self.marks.reserve_exact(frames.saturating_sub(self.marks.len()));
    }

    /// Adds free frames up to `frames`.
    pub(super) fn grow(&mut self, frames: usize) {
        for frame in self.links.len()..frames {
            self.links.push(QueueLink { before: NONE, after: NONE });
            self.marks.push(0);
            self.push(CacheQueue::Free, frame as u32);
        }
    }

    /// Removes the frames from `frames` on; none of them may be in a queue.
    pub(super) fn truncate(&mut self, frames: usize) {
        self.links.truncate(frames);
        self.marks.truncate(frames);
        self.links.shrink_to(frames);
        self.marks.shrink_to(frames);
    }

    /// Counts a use. Stores only if the count changes, so a hot page's cache line stays clean.
    pub(super) fn touch(&mut self, frame: u32) {
        let mark = &mut self.marks[frame as usize];
        if *mark & USES_MASK < USES_MASK {
            *mark += 1;
        }
    }

    /// Prefetches the memory that [`Queues::touch`] accesses.
    #[inline]
    pub(super) fn fetch(&self, frame: u32) {
        crate::prefetch(&self.marks[frame as usize..=frame as usize]);
    }

    pub(super) fn uses(&self, frame: u32) -> u8 {
        self.marks[frame as usize] & USES_MASK
    }

    pub(super) fn set_uses(&mut self, frame: u32, uses: u8) {
        let mark = &mut self.marks[frame as usize];
        *mark = (*mark & !USES_MASK) | uses;
    }

    /// Appends a frame that is in no queue; keeps its use count.
    pub(super) fn push(&mut self, queue: CacheQueue, frame: u32) {
        let ends = &mut self.ends[queue as usize];
        self.links[frame as usize] = QueueLink { before: ends.last, after: NONE };
        match ends.last {
            NONE => ends.first = frame,
            last => self.links[last as usize].after = frame,
        }
        ends.last = frame;
        ends.len += 1;
        let mark = &mut self.marks[frame as usize];
        *mark = (*mark & USES_MASK) | ((queue as u8) << QUEUE_SHIFT);
    }

    /// Removes a frame from its queue.
    pub(super) fn remove(&mut self, frame: u32) {
        let queue = self.queue_of(frame);
        let QueueLink { before, after } = self.links[frame as usize];
        let ends = &mut self.ends[queue as usize];
        ends.len -= 1;
        match before {
            NONE => ends.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => ends.last = before,
            after => self.links[after as usize].before = before,
        }
    }

    /// Removes and returns the first frame.
    pub(super) fn pop(&mut self, queue: CacheQueue) -> Option<u32> {
        let first = self.ends[queue as usize].first;
        (first != NONE).then(|| {
            self.remove(first);
            first
        })
    }

    /// Gives `to`, which is in no queue, the position of `from` in its queue.
    pub(super) fn relocate(&mut self, from: u32, to: u32) {
        let link = self.links[from as usize];
        let queue = self.queue_of(from);
        self.links[to as usize] = link;
        self.marks[to as usize] = self.marks[from as usize];
        let ends = &mut self.ends[queue as usize];
        match link.before {
            NONE => ends.first = to,
            before => self.links[before as usize].after = to,
        }
        match link.after {
            NONE => ends.last = to,
            after => self.links[after as usize].before = to,
        }
    }
}
