//! Start-up frames and the arithmetic of FPDUs.
