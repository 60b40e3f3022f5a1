#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = targets::engine::printk(input);
});
