//! Repair: writes what a damaged data directory still has into a new one, and leaves the damaged one as it is.
use super::{FoundStore, Losses, open_device, open_store, refuse_misplaced_key};
use crate::data_dir::{Layout, create_private};
use crate::failure::{Exit, Failure};
use fawn_ds::internals::format::record::{RecordRef, VALUE_BYTES_LIMIT};
use fawn_ds::internals::index::PointerWidth;
use fawn_ds::internals::{Engine, EngineError, OpenError, Options, RecordLayout};
use fawn_flash::{Device, DeviceError, FileDevice};
use fawn_node::Placement;
use fawn_types::{ClientTag, Durability, Epoch, HashSecret, KeyHash, RangeId, Version};
use std::path::Path;

/// Records between two rounds of writing.
const ROUND_RECORDS: u64 = 256;

/// The content of a repaired copy.
pub(crate) struct RepairedCopy {
    /// Number of keys.
    pub(crate) keys: u64,
    /// More is lost than the survey has printed, which the user accepted.
    pub(crate) has_lost_more: bool,
}

/// Writes all that is left of the stores of `layout` into the empty directory `to`. `newest` is the newest epoch of all of
/// them: a store that is lost may have had it.
pub(crate) fn write_repaired(
    layout: &Layout,
    to: &Path,
    secret: HashSecret,
    newest: Epoch,
    surveyed: &Losses,
) -> Result<RepairedCopy, Failure> {
    let mut repaired = layout.create_like(to)?;
    let secret = repaired.secret().unwrap_or(secret);
    let (mut keys, mut losses) = (0, surveyed.of_second_reading());
    let dirs: Vec<_> = repaired.shard_dirs().collect();
    for ((placement, from), (_, to)) in layout.shard_dirs().zip(dirs) {
        create_private(&to)?;
        losses.begin(layout.shards(), placement.shard());
        keys += copy_store(layout, (&from, &to), placement, secret, newest, &mut losses)?;
    }
    losses.refuse_all_lost(layout)?;
    repaired.finish()?;
    Ok(RepairedCopy { keys, has_lost_more: losses.exceed(surveyed) })
}

fn copy_store(
    layout: &Layout,
    (from, to): (&Path, &Path),
    placement: Placement,
    secret: HashSecret,
    newest: Epoch,
    losses: &mut Losses,
) -> Result<u64, Failure> {
    let source = match open_store(layout, from)? {
        FoundStore::Open(engine, found) => {
            losses.add_found(&found);
            Some(engine)
        }
        FoundStore::Unmade => None,
        FoundStore::Lost(why) => {
            losses.add_store(from, &why);
            None
        }
    };
    // A store that is lost gets segments as the others have: they are one size in a directory.
    let segment_bytes = layout.segment().and_then(|segment| u32::try_from(segment.0).ok());
    let mut copy = StoreCopy::create(to, (placement, segment_bytes), secret, newest, source.as_deref())?;
    if let Some(mut engine) = source {
        let report = engine.dump(|_, record| {
            refuse_misplaced_key(layout, placement, from, record.key)?;
            copy.append(record).map_err(|error| failed(to, &error))
        })?;
        losses.add(&report);
    }
    copy.close().map_err(|error| failed(to, &error))
}

/// The newest epoch that a version of the store may have.
pub(crate) fn newest_epoch(store: &Engine<FileDevice>) -> Epoch {
    let versions = store.ranges().map(|(id, _)| store.progress(id).appended);
    let opens = Epoch::new(store.generation()).unwrap_or_default();
    versions.map(Version::epoch).max().unwrap_or_default().max(opens)
}

fn failed(to: &Path, error: &EngineError) -> Failure {
    if matches!(error, EngineError::StoreFull | EngineError::Device(DeviceError::Full { .. })) {
        return Failure::no_space(to.display());
    }
    Failure::new(Exit::Failed, format!("{}: {error}; nothing was copied", to.display()))
}

/// A new store of a standalone server, being filled.
struct StoreCopy {
    engine: Engine<FileDevice>,
    range: RangeId,
    epoch: Epoch,
    seq: u64,
}

impl StoreCopy {
    fn create(
        dir: &Path,
        (placement, segment_bytes): (Placement, Option<u32>),
        secret: HashSecret,
        newest: Epoch,
        source: Option<&Engine<FileDevice>>,
    ) -> Result<Self, Failure> {
        let defaults = Options::default();
        let segment_bytes = segment_bytes.unwrap_or(defaults.segment_bytes);
        // A store that has runs may have more keys than fit in an index.
        let has_runs = source.is_some_and(|source| source.runs() > 0);
        let options = Options {
            segment_bytes: source.map_or(segment_bytes, |source| source.options().segment_bytes),
            value_bytes_max: VALUE_BYTES_LIMIT as u32,
            durability: Durability::EverySecond,
            secret: Some(secret),
            number_if_new: u32::from(placement.shard().0),
            // The space that is free now says nothing about the source's capacity. The shorter ones could bound the log below it.
            pointers_if_new: Some(source.map_or(PointerWidth::Bits40, |source| source.options().index.pointers)),
            layout: if has_runs { RecordLayout::Auto } else { RecordLayout::Log },
            ..defaults
        };
        let fail = |error| failed(dir, &error);
        let device = open_device(dir).map_err(|error| fail(error.into()))?;
        let opened = Engine::open(device, options, fawn_flash::clock::now());
        let (mut engine, _) = opened.map_err(|error| match error {
            OpenError::Device(error) => fail(error.into()),
            OpenError::Engine(error) => fail(error),
            error => Failure::new(Exit::Failed, format!("{}: {error}", dir.display())),
        })?;
        let (range, keys) = placement.range();
        engine.add_range(range, keys).map_err(fail)?;
        // Above all versions of the damaged stores: a client's `cas` with one of them must not succeed on another value.
        let newest = newest.max(source.map(newest_epoch).unwrap_or_default());
        let used_up = || Failure::new(Exit::Failed, "the store's versions are used up; dump it, and load the dump");
        let epoch = newest.next().ok_or_else(used_up)?;
        engine.begin_sole_epoch(range, epoch, None).map_err(fail)?;
        Ok(Self { engine, range, epoch, seq: 0 })
    }

    fn append(&mut self, record: &RecordRef<'_>) -> Result<(), EngineError> {
        let used_up = || EngineError::Poisoned { first: "the epoch's versions are used up".to_owned() };
        let version = Version::new(self.epoch, self.seq + 1).ok_or_else(used_up)?;
        let hash = KeyHash::of(self.engine.secret(), record.key);
        // Replies for retries belong to sessions of a server that is gone.
        let record = RecordRef { version, tag: ClientTag::NONE, result: &[], ..*record };
        while let Err(error) = self.engine.append(self.range, hash, &record) {
            if error != EngineError::Overloaded {
                return Err(error);
            }
            self.write()?;
        }
        self.seq += 1;
        if self.seq.is_multiple_of(ROUND_RECORDS) {
            self.write()?;
        }
        Ok(())
    }

    /// A round: submits, waits for what is in flight, and commits what is written.
    fn write(&mut self) -> Result<(), EngineError> {
        let now = fawn_flash::clock::now();
        self.engine.advance_clock(now);
        self.engine.submit(now);
        self.engine.wait(now, &mut Vec::new());
        let through = self.engine.progress(self.range).watermark_for(self.engine.options().durability);
        self.engine.commit(self.range, through);
        match self.engine.poisoned() {
            Some(first) => Err(EngineError::Poisoned { first: first.to_owned() }),
            None => Ok(()),
        }
    }

    /// Makes everything durable. Returns the number of records.
    fn close(mut self) -> Result<u64, EngineError> {
        self.engine.sync_all()?;
        while self.engine.progress(self.range).committed < self.engine.progress(self.range).appended {
            self.write()?;
        }
        let device: FileDevice = self.engine.close()?;
        debug_assert_eq!(device.in_flight(), 0, "a closed store has no operation in flight");
        Ok(self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_ds::internals::backup::{Sharing, copy_dir};
    use fawn_ds::internals::format::segment::is_file_name;
    use fawn_types::KeyRange;
    use std::convert::Infallible;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const SECRET: HashSecret = HashSecret([7; 16]);
    const KEYS: u32 = 100;

    fn fill(layout: &Layout) {
        for (placement, dir) in layout.shard_dirs() {
            create_private(&dir).unwrap();
            let mut store = StoreCopy::create(&dir, (placement, None), SECRET, Epoch::default(), None).unwrap();
            for key in 0..KEYS {
                store.append(&RecordRef::put(Version::ZERO, &key.to_be_bytes(), &[7; 1000])).unwrap();
            }
            assert_eq!(store.close().unwrap(), u64::from(KEYS));
        }
    }

    /// Reads all stores as `fawn check --repair` does before its question.
    fn survey(layout: &Layout) -> Losses {
        let mut losses = Losses::default();
        for (placement, dir) in layout.shard_dirs() {
            losses.begin(layout.shards(), placement.shard());
            let opened = open_store(layout, &dir).unwrap();
            let FoundStore::Open(mut engine, found) = opened else { panic!("there is a store") };
            losses.add_found(&found);
            let report = engine.dump(|_, _| Ok::<_, Infallible>(())).unwrap();
            losses.add(&report);
        }
        losses
    }

    /// Changes a byte of the first value in a segment.
    fn damage(dir: &Path) {
        let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        for name in names.filter(|name| is_file_name(name)) {
            let file = File::options().read(true).write(true).open(dir.join(name)).unwrap();
            let mut bytes = vec![0; 16 << 10];
            let len = file.read_at(&mut bytes, 0).unwrap();
            if let Some(at) = bytes[..len].windows(100).position(|window| window == [7; 100]) {
                file.write_all_at(&[6], at as u64).unwrap();
                return;
            }
        }
        panic!("no segment has a value");
    }

    /// Fills a store of one shard until it has runs.
    fn fill_sorted(dir: &Path) {
        create_private(dir).unwrap();
        let (layout, sort_bytes, secret) = (RecordLayout::Sorted, 1, Some(SECRET));
        let options = Options { segment_bytes: 64 << 10, layout, sort_bytes, secret, ..Options::default() };
        let (mut engine, _) = Engine::open(open_device(dir).unwrap(), options, fawn_flash::clock::now()).unwrap();
        let (range, keys, epoch) = (RangeId(0), KeyRange::ALL, Epoch::default().next().unwrap());
        engine.add_range(range, keys).unwrap();
        engine.begin_sole_epoch(range, epoch, None).unwrap();
        let mut store = StoreCopy { engine, range, epoch, seq: 0 };
        for key in 0..20_000_u32 {
            if store.engine.runs() > 0 {
                break;
            }
            store.append(&RecordRef::put(Version::ZERO, &key.to_be_bytes(), &[7; 500])).unwrap();
        }
        store.close().unwrap();
    }

    /// An index of all keys would need many times the memory of the source's.
    #[test]
    fn a_copy_of_a_store_with_runs_may_have_runs() {
        let dir = tempfile::tempdir().unwrap();
        let [sorted, plain, to] = ["sorted", "plain", "to"].map(|name| dir.path().join(name));
        fill_sorted(&sorted);
        fill(&Layout::flat(&plain));
        for (from, expected) in [(&sorted, RecordLayout::Auto), (&plain, RecordLayout::Log)] {
            let layout = Layout::flat(from);
            let FoundStore::Open(source, _) = open_store(&layout, from).unwrap() else { panic!("there is a store") };
            assert_eq!(source.runs() > 0, expected == RecordLayout::Auto);
            let (placement, _) = layout.shard_dirs().next().unwrap();
            let copy = StoreCopy::create(&to, (placement, None), SECRET, Epoch::default(), Some(&source)).unwrap();
            assert_eq!(copy.engine.options().layout, expected);
            copy.close().unwrap();
            std::fs::remove_dir_all(&to).unwrap();
        }
    }

    /// With shorter ones, the copy could hold less than its source: however much space is free while it is made.
    #[test]
    fn a_copy_has_the_pointers_of_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let placement = Layout::flat(dir.path()).shard_dirs().next().unwrap().0;
        let create = |name: &str, source: Option<&Engine<FileDevice>>| {
            let dir = dir.path().join(name);
            create_private(&dir).unwrap();
            StoreCopy::create(&dir, (placement, None), SECRET, Epoch::default(), source).unwrap()
        };
        for pointers in [PointerWidth::Bits32, PointerWidth::Bits40] {
            let name = format!("{pointers:?}");
            let options = Options { pointers_if_new: Some(pointers), secret: Some(SECRET), ..Options::default() };
            create_private(&dir.path().join(&name)).unwrap();
            let device = open_device(&dir.path().join(&name)).unwrap();
            let (source, _) = Engine::open(device, options, fawn_flash::clock::now()).unwrap();
            let copy = create(&format!("{name}.repaired"), Some(&source));
            assert_eq!(copy.engine.options().index.pointers, pointers);
        }
        assert_eq!(create("lost", None).engine.options().index.pointers, PointerWidth::Bits40, "its own are unknown");
    }

    /// There is no server with keys to delete.
    #[test]
    fn a_copy_without_space_asks_for_no_deletes() {
        for error in [EngineError::StoreFull, EngineError::Device(DeviceError::Full { dir: "this store".to_owned() })] {
            let words = failed(Path::new("/new"), &error).to_string();
            assert!(words.contains("no space left on the device of /new; free space there"), "{words}");
            assert!(!words.contains("delete"), "{words}");
        }
    }

    #[test]
    fn a_copy_of_what_was_lost_after_the_survey_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::flat(&dir.path().join("data"));
        fill(&layout);
        let surveyed = survey(&layout);
        std::fs::remove_dir_all(dir.path().join("data")).unwrap();
        let to = dir.path().join("to");
        create_private(&to).unwrap();
        let copied = write_repaired(&layout, &to, SECRET, Epoch::default(), &surveyed);
        assert!(copied.is_err_and(|failure| failure.to_string().contains("no shard can be read")));
    }

    #[test]
    fn damage_after_the_survey_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let layout = Layout::flat(&data);
        fill(&layout);
        let losses = survey(&layout);
        assert!(!losses.is_damaged(), "{losses:?}");
        damage(&data);
        let repair = |layout: &Layout, name: &str, surveyed: &Losses| {
            let to = dir.path().join(name);
            create_private(&to).unwrap();
            let RepairedCopy { keys, has_lost_more } =
                write_repaired(layout, &to, SECRET, Epoch::default(), surveyed).unwrap();
            assert!(!survey(&Layout::flat(&to)).is_damaged(), "the copy is complete and sound");
            (keys, has_lost_more)
        };
        assert_eq!(repair(&layout, "first", &losses), (99, true));

        let losses = survey(&layout);
        assert!(losses.is_damaged(), "{losses:?}");
        assert_eq!(repair(&layout, "second", &losses), (99, false));
        let sound = Layout::flat(&dir.path().join("sound"));
        fill(&sound);
        assert_eq!(repair(&sound, "third", &losses), (100, false), "less may be lost");
    }

    /// A `cas` token of one would otherwise fit the other.
    #[test]
    fn a_copy_of_a_repaired_store_shares_no_versions_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let [repaired, copy] = ["repaired", "copy"].map(|name| dir.path().join(name));
        create_private(&repaired).unwrap();
        let placement = Layout::flat(&repaired).shard_dirs().next().unwrap().0;
        // More opens than a copy skips.
        let newest = Epoch::new(1 << 20).unwrap();
        StoreCopy::create(&repaired, (placement, None), SECRET, newest, None).unwrap().close().unwrap();
        copy_dir(&repaired, &copy, Sharing::Links, 0, &mut |_, _| {}).unwrap();
        let [source, copied] = [&repaired, &copy].map(|dir| {
            let device = open_device(dir).unwrap();
            let (engine, _) = Engine::open(device, Options::default(), fawn_flash::clock::now()).unwrap();
            engine.next_sole_epoch(placement.range().0).unwrap().get()
        });
        assert!(source > newest.get() && copied >= source + (1 << 16), "{source} and {copied}");
    }
}
