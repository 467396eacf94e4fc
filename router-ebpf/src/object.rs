//! What each object has, whatever its programs: its licence, and a panic handler that the compiler wants.
#![expect(unsafe_code, reason = "names and sections that the loader looks for")]

/// Helpers such as `bpf_sk_storage_get` are for GPL-compatible programs only.
// SAFETY: no other item has this name or section.
#[unsafe(link_section = "license")]
// SAFETY: as above.
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses an object in which this could be reached.
    loop {}
}
