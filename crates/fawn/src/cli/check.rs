//! Command `fawn check`.
use crate::data_dir::{Layout, NewDir, refuse, refuse_no_data_dir, with_suffix};
use crate::failure::{Exit, Failure};
use crate::printing::{counted, print_note, print_result};
use crate::salvage::{
    FoundStore, Losses, NOTHING_LEFT, RepairedCopy, finding_line, holds_store, newest_epoch, open_device, open_layout,
    open_store, refuse_misplaced_key, write_repaired,
};
use crate::server::random_bytes;
use fawn_ds::internals::check::{CheckReport, Severity};
use fawn_ds::internals::format::manifest;
use fawn_flash::DeviceError;
use fawn_node::is_cluster_store;
use fawn_types::{Epoch, HashSecret};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Verifies a store's files offline: manifest, segments, every record. Changes nothing.
///
/// A `note` is a trace of a crash that the next start handles; no acknowledged data is missing. `DAMAGE` is
/// acknowledged data that is corrupt or missing, and makes the command end with exit code 3.
///
/// With --repair, a damaged directory's intact records are copied to a new directory, once you have seen what is lost.
/// The damaged directory stays as it is.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  fawn check /var/lib/fawn\n  \
                             fawn check /var/lib/fawn --repair --to /mnt/other/fawn")]
pub(super) struct Check {
    /// The data directory; no server may be using it.
    dir: PathBuf,
    /// Copies what is left of a damaged store into a new directory.
    #[arg(long)]
    repair: bool,
    /// The new directory [default: DIR.repaired].
    #[arg(long, value_name = "DIR2", requires = "repair")]
    to: Option<PathBuf>,
    /// Repairs without a question.
    #[arg(long, requires = "repair")]
    yes: bool,
}

impl Check {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.repair {
            return self.repair();
        }
        refuse_no_data_dir(&self.dir)?;
        let layout = Layout::existing(&self.dir)?;
        if layout.is_none() && !holds_store(&self.dir) {
            return refuse(&self.dir, "holds no store: neither a manifest nor segments; give a data directory");
        }
        drop(layout);
        if verify(&self.dir)?.is_empty() {
            print_result("sound");
            return Ok(());
        }
        let words = "corrupt, as listed; keep a copy of the directory before anything else. `fawn check --repair` copies \
                     what is left of it into a new one";
        refuse(&self.dir, words)
    }

    fn repair(&self) -> Result<(), Failure> {
        let layout = open_layout(&self.dir)?;
        layout.refuse_misplaced()?;
        let target = match self.to.clone() {
            Some(target) => target,
            // `.` and `data/..` have no name of their own.
            None => {
                let whole = self.dir.canonicalize().map_err(Failure::about(Exit::Data, self.dir.display()))?;
                with_suffix(&whole, ".repaired")
            }
        };
        let target = NewDir::choose(&self.dir, target)?;
        let survey = survey(&layout)?;
        let Survey { keys, expired, losses, .. } = &survey;
        if !losses.is_damaged() {
            print_result("sound; there is nothing to repair");
            return Ok(());
        }
        print_note(format_args!("{}: {}; {} left", self.dir.display(), losses.describe(), counted(*keys, "key")));
        if *expired > 0 {
            // By a clock that is ahead, keys expire that should not.
            let expired = counted(*expired, "expired key");
            print_note(format_args!("{expired} left out: stop here if this machine's clock is ahead"));
        }
        losses.explain();
        confirm(self.yes, target.path())?;
        let copied = repair_into(layout, &target, &survey)?;
        self.report(target.path(), &copied)
    }

    fn report(&self, copy: &Path, copied: &RepairedCopy) -> Result<(), Failure> {
        let RepairedCopy { keys, has_lost_more } = copied;
        let keys = counted(*keys, "key");
        let (shown, path) = (self.dir.display(), copy.display());
        if *has_lost_more {
            // The copy stays: on a failing disk it may be the last one.
            let words =
                "more was lost than the list before the question showed; the copy is sound and has what is left";
            return Err(Failure::new(Exit::Lost, format!("{path}: {keys} copied; {words}")));
        }
        print_result(format_args!("{keys} copied to {path}, which is sound. {shown} is unchanged. To use the copy:"));
        print_result(format_args!("  {}", swap_commands(&self.dir, copy)));
        Ok(())
    }
}

/// Copies what is left, and verifies the copy before it gets its name. After a failure nothing of it is left, unless the
/// verified copy could not be moved up to its directory: then it is kept.
fn repair_into(layout: Layout, target: &NewDir, survey: &Survey) -> Result<RepairedCopy, Failure> {
    write_verified(layout, target, survey).inspect_err(|_| target.discard())
}

fn write_verified(layout: Layout, target: &NewDir, survey: &Survey) -> Result<RepairedCopy, Failure> {
    let partial = target.begin()?;
    let secret = HashSecret(random_bytes()?);
    let copied = write_repaired(&layout, partial, secret, survey.newest, &survey.losses)?;
    drop(layout);
    if !verify(partial)?.is_empty() {
        return refuse(target.path(), "the copy is corrupt, as listed; look at the kernel's log and at the disk");
    }
    target.finish()?;
    Ok(copied)
}

/// The shell commands that put the copy in the place of the damaged directory. A mount point cannot be renamed: then the
/// copy is served where it is.
fn swap_commands(dir: &Path, copy: &Path) -> String {
    // Of a link the name alone would move, and `.` and `..` cannot be renamed. Both exist, so both can be resolved.
    let [dir, copy] = [dir, copy].map(|path| path.canonicalize().unwrap_or_else(|_| path.components().collect()));
    if is_mount_point(&dir) || is_mount_point(&copy) || has_mounted_shards(&dir) {
        return format!("fawn serve --dir {}", shell_word(&copy));
    }
    let damaged = shell_word(&with_suffix(&dir, ".damaged"));
    let (dir, copy) = (shell_word(&dir), shell_word(&copy));
    format!("mv {dir} {damaged} && mv {copy} {dir}")
}

/// Whether a store of a shard has a device of its own. Its mount would move with the directory, and the next start of the system
/// would put it over the repaired store.
fn has_mounted_shards(dir: &Path) -> bool {
    let entries = dir.read_dir().into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.is_dir() && is_mount_point(&path))
}

/// Whether a file system begins at this resolved directory.
fn is_mount_point(dir: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev());
    // The root has no parent, and cannot be renamed either.
    let Some(parent) = dir.parent() else { return true };
    matches!((device(parent), device(dir)), (Ok(outside), Ok(inside)) if outside != inside)
}

/// The path as one word of a shell's command line, and not as an option.
fn shell_word(path: &Path) -> String {
    let mut word = path.display().to_string();
    if word.starts_with('-') {
        word.insert_str(0, "./");
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if word.chars().all(is_plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// The content that a repair would copy.
#[derive(Default)]
struct Survey {
    keys: u64,
    /// Keys that a repair leaves out because they have expired.
    expired: u64,
    losses: Losses,
    /// Epoch of the newest store.
    newest: Epoch,
}

/// Reads all stores as a repair does, and prints what is lost.
fn survey(layout: &Layout) -> Result<Survey, Failure> {
    let mut survey = Survey::default();
    for (placement, dir) in layout.shard_dirs() {
        survey.losses.begin(layout.shards(), placement.shard());
        let (mut engine, found) = match open_store(layout, &dir)? {
            FoundStore::Open(engine, found) => (engine, found),
            FoundStore::Unmade => continue,
            FoundStore::Lost(why) => {
                survey.losses.add_store(&dir, &why);
                continue;
            }
        };
        if is_cluster_store(&engine) {
            let words = "is the store of a cluster's member: remove it, and it is copied from the others; if they are \
                         lost too, `fawn dump` it and load the dump";
            return refuse(&dir, words);
        }
        survey.newest = survey.newest.max(newest_epoch(&engine));
        survey.losses.add_found(&found);
        let report = engine.dump(|_, record| refuse_misplaced_key(layout, placement, &dir, record.key))?;
        survey.keys += report.records;
        survey.expired += report.expired;
        survey.losses.add(&report);
    }
    survey.losses.refuse_all_lost(layout)?;
    Ok(survey)
}

fn confirm(yes: bool, target: &Path) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(Exit::Usage, "nothing was written; --yes repairs without a question"));
    }
    // A question that cannot be shown is not answered.
    let asked = write!(std::io::stderr(), "Copy what is left to {}? [y/N] ", target.display());
    asked.map_err(Failure::about(Exit::Failed, "standard error"))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(Failure::about(Exit::Failed, "standard input"))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, "nothing was written"))
}

/// Verifies the files of a data directory, and prints what was read and found. Returns those that are damaged or missing.
pub(super) fn verify(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    match Layout::existing(dir)? {
        None => {
            let report = check_store(dir)?;
            if report.has_nothing_left {
                return refuse(
                    dir,
                    "corrupt, as listed: neither a manifest nor a segment's header is left; restore a backup",
                );
            }
            Ok(damaged_files(dir, &report).collect())
        }
        Some(layout) => check_stores(&layout),
    }
}

/// Checks all stores, also after one that is corrupt, missing or not to be judged. The first of these last is the failure.
fn check_stores(layout: &Layout) -> Result<Vec<PathBuf>, Failure> {
    print_result(format_args!("{} shards", layout.shards()));
    let (mut damaged, mut is_any_left, mut failed) = (Vec::new(), false, None);
    for (placement, dir) in layout.shard_dirs() {
        print_result(format_args!("shard {}:", placement.shard().0));
        if layout.is_unfinished() && !dir.join(manifest::FILE_NAME).exists() {
            print_result("note: not made yet; the first start was interrupted, the next goes on with it");
            continue;
        }
        match layout.missing(placement.shard()) {
            Some(words) if !dir.is_dir() || !holds_store(&dir) => {
                print_result(format_args!("DAMAGE: {}: {words}", dir.display()));
                damaged.push(dir);
            }
            // Segments without their manifest are reported by the check.
            _ => match check_store(&dir) {
                Ok(report) => {
                    damaged.extend(damaged_files(&dir, &report));
                    is_any_left |= !report.has_nothing_left;
                }
                Err(failure) => {
                    print_result(&failure);
                    failed = failed.or(Some(failure));
                }
            },
        }
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    if damaged.is_empty() || is_any_left { Ok(damaged) } else { refuse(layout.dir(), NOTHING_LEFT) }
}

fn damaged_files(dir: &Path, report: &CheckReport) -> impl Iterator<Item = PathBuf> {
    let damage = report.findings.iter().filter(|finding| finding.severity == Severity::Damage);
    damage.map(|finding| dir.join(&finding.file))
}

fn check_store(dir: &Path) -> Result<CheckReport, Failure> {
    let fail = |error: DeviceError| Failure::new(Exit::Data, format!("{}: {error}", dir.display()));
    let mut device = open_device(dir).map_err(fail)?;
    let report = fawn_ds::internals::check::check(&mut device).map_err(fail)?;
    if let Some((file, error)) = &report.other_format {
        return refuse(dir, format_args!("{file}: {error}"));
    }
    print(&report);
    Ok(report)
}

fn print(report: &CheckReport) {
    let CheckReport { segments, frames, records, bytes, findings, .. } = report;
    let (segments, frames) = (counted(*segments, "segment"), counted(*frames, "frame"));
    print_result(format_args!("{segments}, {frames}, {}, {bytes} bytes verified", counted(*records, "record")));
    for finding in findings {
        print_result(finding_line(finding));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SettingFlags, Settings};
    use fawn_flash::Device;

    #[test]
    fn the_commands_rename_the_directories_themselves() {
        for (dir, copy, expected) in [
            ("/x", "/x.repaired", "mv /x /x.damaged && mv /x.repaired /x"),
            ("/x/", "/y/", "mv /x /x.damaged && mv /y /x"),
            ("absent/.", "../new", "mv absent absent.damaged && mv ../new absent"),
            ("/a b", "/c$d", "mv '/a b' '/a b.damaged' && mv '/c$d' '/a b'"),
            ("/it's", "/y", r"mv '/it'\''s' '/it'\''s.damaged' && mv /y '/it'\''s'"),
            ("-f", "~", "mv ./-f ./-f.damaged && mv '~' ./-f"),
        ] {
            assert_eq!(swap_commands(Path::new(dir), Path::new(copy)), expected);
        }
    }

    #[test]
    fn directories_without_names_get_them() {
        let dir = tempfile::tempdir().unwrap();
        let whole = dir.path().canonicalize().unwrap();
        let (data, copy) = (whole.join("data"), whole.join("copy"));
        std::fs::create_dir_all(data.join("below")).unwrap();
        std::fs::create_dir_all(copy.join("below")).unwrap();
        let commands = [
            swap_commands(&data.join("below/.."), &whole.join("data/../copy")),
            swap_commands(&data, &copy.join("below/..")),
        ];
        let (data, copy) = (data.display(), copy.display());
        assert_eq!(commands[0], format!("mv {data} {data}.damaged && mv {copy} {data}"));
        assert_eq!(commands[1], commands[0], "a copy without a name, as `.`");
    }

    /// `mv` of a link would leave the damaged directory under its name.
    #[test]
    fn links_are_resolved_before_directories_are_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let whole = dir.path().canonicalize().unwrap();
        let [data, copy, link, copy_link] = ["data", "copy", "link", "copy-link"].map(|name| whole.join(name));
        for (dir, link) in [(&data, &link), (&copy, &copy_link)] {
            std::fs::create_dir(dir).unwrap();
            std::os::unix::fs::symlink(dir, link).unwrap();
        }
        assert_eq!(swap_commands(&link, &copy_link), swap_commands(&data, &copy));
    }

    #[test]
    fn a_copy_for_a_mount_point_is_served_in_place() {
        let copy = tempfile::tempdir().unwrap();
        let copy = copy.path().canonicalize().unwrap();
        for mount_point in ["/proc", "/"] {
            assert_eq!(swap_commands(Path::new(mount_point), &copy), format!("fawn serve --dir {}", copy.display()));
        }
    }

    #[test]
    fn a_directory_may_have_mount_points_in_it() {
        assert!(has_mounted_shards(Path::new("/")), "`/proc`");
        assert!(!has_mounted_shards(tempfile::tempdir().unwrap().path()));
    }

    /// As after a kill: the copy has a manifest from the first record on.
    #[test]
    fn a_repair_that_is_interrupted_leaves_nothing_that_counts_as_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let [data, new, existing] = ["data", "new", "existing"].map(|name| dir.path().join(name));
        for dir in [&data, &existing] {
            std::fs::create_dir(dir).unwrap();
        }
        let settle = |dir: &Path| {
            let flags = SettingFlags { dir: Some(dir.to_owned()), ..SettingFlags::default() };
            Layout::settle(&Settings::resolve(flags, SettingFlags::default()).unwrap(), HashSecret([7; 16])).map(drop)
        };
        let check = |dir: &Path| Check { dir: dir.to_owned(), repair: false, to: None, yes: false }.run();
        let commands = |dir: &Path| {
            [settle(dir), check(dir), open_layout(dir).map(drop), Layout::in_use(dir).map(drop)]
                .map(|done| done.is_ok())
        };
        for to in [&new, &existing] {
            let target = NewDir::choose(&data, to.clone()).unwrap();
            let partial = target.begin().unwrap().to_owned();
            let source = Layout::flat(&data);
            write_repaired(&source, &partial, HashSecret([7; 16]), Epoch::default(), &Losses::default())
                .map(drop)
                .unwrap_err();
            assert!(partial.join(manifest::FILE_NAME).exists());
            assert_eq!(commands(&partial), [false; 4], "{}", partial.display());
            target.finish().unwrap();
            assert_eq!(commands(to), [true; 4], "{}", to.display());
        }
    }

    #[test]
    fn a_repair_that_fails_leaves_no_copy_behind() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join(manifest::FILE_NAME), "damaged").unwrap();
        // A server was started since the survey.
        let mut server = open_device(&data).unwrap();
        server.lock().unwrap();
        let repair = || {
            let target = NewDir::choose(&data, dir.path().join("copy")).unwrap();
            repair_into(Layout::flat(&data), &target, &Survey::default()).map(drop).unwrap_err().to_string()
        };
        let error = repair();
        assert!(error.contains("in use"), "{error}");
        assert_eq!(repair(), error, "the next attempt meets no part of the first one");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "the damaged directory alone");
    }
}
