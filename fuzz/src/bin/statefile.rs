//! Fuzzes the coordinator's state file: any bytes are refused or read, and the state that was read
//! can be written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_store::coordinator::statefile::read;

fuzz_target!(|input: &[u8]| {
    let Ok(opened) = read(input) else { return };
    let (mut log, pieces) = opened.log.checkpoint(&opened.pairs);
    let mut file = input.to_vec();
    for piece in pieces.into_iter().chain([log.seal(), log.seal()]) {
        let end = piece.end() as usize;
        file.resize(file.len().max(end), 0);
        file[piece.at as usize..end].copy_from_slice(&piece.bytes);
    }
    assert_eq!(read(&file).map(|again| again.pairs), Ok(opened.pairs));
});
