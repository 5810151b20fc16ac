//! Echoes and reads of 100 bytes over shared memory with both ends in one thread, in a program that
//! depends on the library and sets nothing in its profile. `make instructions` counts `one_echo`,
//! `one_read` and the functions `*_client` and `*_server`, as it counts those of `sprat bench
//! single-thread`, and compares the two.

mod echo;
mod read;
mod turns;

fn main() -> Result<(), turns::Failure> {
    echo::run()?;
    read::run()
}
