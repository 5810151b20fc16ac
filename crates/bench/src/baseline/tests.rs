use sprat_proto::time::SECOND;

use super::*;

const FEW: Limits = Limits { count: 50, time_ns: 20 * SECOND };

#[test]
fn every_floor_gives_its_samples() {
    let sizes = [cache_line(FEW), ring(64, FEW), ring(65_536, FEW), memory(1 << 20, FEW)];
    for samples in sizes {
        assert_eq!(samples.unwrap().len(), FEW.count);
    }
    for waiting in [Waiting::Polling, Waiting::Blocking] {
        assert_eq!(Kernel::loopback().udp(100, waiting, FEW).unwrap().len(), FEW.count);
        assert_eq!(Kernel::loopback().udp(65_507, waiting, FEW).unwrap().len(), FEW.count);
        assert_eq!(Kernel::loopback().tcp(100, waiting, FEW).unwrap().len(), FEW.count);
        assert_eq!(
            Kernel::loopback().tcp_exchange(32, 1_000_000, waiting, FEW).unwrap().len(),
            FEW.count
        );
    }
}

#[test]
fn a_disk_commits_batches_of_any_size_and_keeps_no_file() {
    // A file in the directory of the build: one in memory has no direct writes.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for (records, bytes) in [(1, 100), (64, 190), (3, 1_000_000)] {
        let batch = Batch { records, bytes };
        for commit in [commit_mapped, commit_direct] {
            let few = Limits { count: 3, ..FEW };
            assert_eq!(commit(folder.path(), batch, few).unwrap().len(), 3, "{batch:?}");
        }
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn streams_count_what_arrived() {
    let flow = ring_stream(65_536, FEW).unwrap();
    assert_eq!(flow.bytes, 50 * 65_536);
    assert!(flow.bytes_per_s() > 0.0);
    let flow = Kernel::loopback().udp_stream(8188, FEW).unwrap();
    assert!(flow.bytes >= 50 * 8188 && flow.bytes.is_multiple_of(8188), "{flow:?}");
    let flow = Kernel::loopback().tcp_stream(64_000, FEW).unwrap();
    assert!(flow.bytes >= 50 && flow.bytes_per_s() > 0.0, "{flow:?}");
}

#[test]
fn long_turns_are_among_the_shorter_ones() {
    let [all, some, none] = long_turns(1 << 20, SECOND / 100, [0, 1_000, u64::MAX]);
    assert!(all > 0 && all >= some && none == 0, "{all} {some} {none}");
}

#[test]
fn the_time_limit_ends_a_measurement_too() {
    let short = Limits { count: usize::MAX / 16, time_ns: 1 };
    assert_eq!(ring(64, short).unwrap().len(), 1);
    assert_eq!(ring_stream(64, short).unwrap().bytes, 64);
}

#[test]
fn the_end_of_the_other_process_is_an_error_and_no_hang() {
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = between(
        move || {
            drop(there);
            Ok(())
        },
        move || {
            let n = io::Read::read(&mut &here, &mut [0])?;
            if n == 0 { Err::<(), _>(ended()) } else { Ok(()) }
        },
    );
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}
