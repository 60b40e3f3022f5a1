//! Bytes as hexadecimal digits, two each. A megabyte of them is written and read in a moment.

/// The digits of `bytes`.
pub(crate) fn text(bytes: &[u8]) -> String {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + value - 10 };
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]);
    digits.map(char::from).collect()
}

/// The bytes that hexadecimal digits are; none where they are no digits.
pub(crate) fn bytes(digits: &str) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_bytes_and_bytes_digits() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes(&text(&all)), Some(all));
        assert_eq!(text(&[0x7f, 0x0a]), "7f0a");
        assert_eq!([bytes("7"), bytes("0g"), bytes("é"), bytes("+1")], [const { None }; 4]);
        assert_eq!(bytes(""), Some(Vec::new()));
    }
}
