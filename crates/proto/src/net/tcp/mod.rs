//! TCP.
mod assembler;
mod congestion;
mod ring;
mod rtt;
mod scoreboard;
mod seq;
