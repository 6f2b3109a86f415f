//! `.npz` files as other programs write them: with extra fields, comments, and the wide records of large archives.

use dittograd::io::{npy_bytes, npz_bytes, parse_npz};
use dittograd::tensor::{AnyTensor, Tensor};

/// What stands in for a number that is told elsewhere.
const ELSEWHERE: u32 = u32::MAX;

/// How an entry is told of.
#[derive(Clone, Default)]
struct Style {
    /// Bytes between a file's own header and its content.
    local_extra: Vec<u8>,
    /// Size, packed size and place are in the extra field, where so.
    wide: [bool; 3],
    /// Fields before the one of the wide numbers.
    before: Vec<u8>,
    comment: &'static [u8],
    /// The numbers of the end record are in a record of their own, where so: disk, count, place.
    wide_end: [bool; 3],
}

fn arrays() -> Vec<(String, AnyTensor)> {
    let x = Tensor::new(&[3], vec![1.0f32, -2.5, 1e-40]).unwrap().into();
    let y = Tensor::new(&[2, 2], vec![0u32, 1, 2, u32::MAX]).unwrap().into();
    vec![("x".to_string(), x), ("long.name".to_string(), y)]
}

fn field(id: u16, content: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes()[..], &(content.len() as u16).to_le_bytes(), content].concat()
}

/// An archive of the two arrays, and where its records start.
struct Made {
    bytes: Vec<u8>,
    entries: Vec<usize>,
    end_64: usize,
    end: usize,
}

fn archive(style: &Style) -> Made {
    let (mut out, mut directory, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    for (name, array) in arrays() {
        // The checksum is taken from our own writer's file; all else is made here.
        let own = npz_bytes(&[(&name, &array)]).unwrap();
        let (crc, content, file) = (&own[14..18], npy_bytes(&array), format!("{name}.npy"));
        let start = out.len() as u32;
        out.extend(b"PK\x03\x04\x2d\0\0\0\0\0\0\0\x21\0");
        out.extend(crc);
        out.extend([content.len() as u32, content.len() as u32].map(u32::to_le_bytes).concat());
        out.extend([file.len() as u16, style.local_extra.len() as u16].map(u16::to_le_bytes).concat());
        out.extend(file.as_bytes());
        out.extend(&style.local_extra);
        out.extend(&content);
        let numbers = [content.len() as u32, content.len() as u32, start];
        let [size, packed, place] = [0, 1, 2].map(|i| if style.wide[i] { ELSEWHERE } else { numbers[i] });
        let wide: Vec<u8> =
            (0..3).filter(|&i| style.wide[i]).flat_map(|i| u64::from(numbers[i]).to_le_bytes()).collect();
        let mut extra = style.before.clone();
        if !wide.is_empty() {
            extra.extend(field(1, &wide));
        }
        entries.push(directory.len());
        directory.extend(b"PK\x01\x02\x2d\0\x2d\0\0\0\0\0\0\0\x21\0");
        directory.extend(crc);
        directory.extend([packed, size].map(u32::to_le_bytes).concat());
        let lengths = [file.len(), extra.len(), style.comment.len()].map(|n| (n as u16).to_le_bytes());
        directory.extend(lengths.concat());
        directory.extend([0; 8]);
        directory.extend(place.to_le_bytes());
        directory.extend(file.as_bytes());
        directory.extend(extra);
        directory.extend(style.comment);
    }
    let (start, end_64) = (out.len(), out.len() + directory.len());
    out.extend(&directory);
    let count = entries.len();
    if style.wide_end.contains(&true) {
        out.extend(b"PK\x06\x06");
        out.extend(44u64.to_le_bytes());
        out.extend([45u16, 45].map(u16::to_le_bytes).concat());
        out.extend([0; 8]);
        out.extend([count, count, directory.len(), start].map(|n| (n as u64).to_le_bytes()).concat());
        out.extend(b"PK\x06\x07\0\0\0\0");
        out.extend((end_64 as u64).to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    let end = out.len();
    let [disk, counted, place] = style.wide_end;
    let (disk, counted) = (if disk { 0xffff } else { 0 }, if counted { 0xffff } else { count as u16 });
    out.extend(b"PK\x05\x06");
    out.extend([disk, disk, counted, counted].map(u16::to_le_bytes).concat());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(if place { ELSEWHERE } else { start as u32 }.to_le_bytes());
    out.extend([0; 2]);
    Made { bytes: out, entries: entries.iter().map(|e| start + e).collect(), end_64, end }
}

fn wide() -> Style {
    // A time stamp stands before the numbers.
    Style {
        wide: [true; 3],
        before: field(0x5455, &[1, 2, 3, 4, 5]),
        wide_end: [true; 3],
        ..Style::default()
    }
}

#[test]
fn names_are_said_to_be_utf_8() {
    let one: AnyTensor = Tensor::new(&[1], vec![1.0f32]).unwrap().into();
    assert_eq!(npz_bytes(&[("ä", &one)]).unwrap()[6..8], [0, 8]);
}

#[test]
fn archives_of_other_programs_are_read() {
    let plain = Style::default();
    let mut styles = vec![
        plain.clone(),
        // NumPy leaves room for wide numbers in each file's own header.
        Style { local_extra: field(1, &[0xff; 16]), ..plain.clone() },
        Style { comment: b"a comment", ..plain.clone() },
        Style { before: field(0x5455, &[1, 2, 3, 4, 5]), comment: b"c", ..plain.clone() },
        wide(),
    ];
    for i in 0..3 {
        let only = |on: usize| [0, 1, 2].map(|j| j == on);
        styles.push(Style { wide: only(i), ..plain.clone() });
        styles.push(Style { wide: only(i), before: field(7, &[]), comment: b"12", ..plain.clone() });
        styles.push(Style { wide_end: only(i), ..plain.clone() });
    }
    for (i, style) in styles.iter().enumerate() {
        assert_eq!(parse_npz("f", &archive(style).bytes).unwrap(), arrays(), "{i}");
    }
}

#[test]
fn damaged_wide_records_are_errors() {
    let made = archive(&wide());
    let refuses = |at: usize, to: &[u8], part: &str| {
        let mut bytes = made.bytes.clone();
        assert_ne!(&bytes[at..at + to.len()], to, "{part}");
        bytes[at..at + to.len()].copy_from_slice(to);
        let got = parse_npz("a.npz", &bytes).expect_err(part).to_string();
        assert!(got.contains(part), "{got}");
    };
    let (damaged, end) = ("the end record is damaged", made.end);
    // The record's own mark, the mark of its place, and places that are not where it is.
    refuses(made.end_64, b"PK\x06\x05", damaged);
    refuses(end - 20, b"PK\x06\x05", damaged);
    refuses(end - 12, &(made.end_64 as u64 + 1).to_le_bytes(), damaged);
    refuses(end - 12, &(end as u64).to_le_bytes(), damaged);
    refuses(end - 12, &u64::MAX.to_le_bytes(), damaged);
    // More arrays than are read, and than there are; a directory that starts after its end, or in a file.
    let counts = |n: u64| [n, n].map(u64::to_le_bytes).concat();
    refuses(made.end_64 + 24, &counts((1 << 16) + 1), "65537 arrays, at most 65536 are read");
    refuses(made.end_64 + 24, &counts(1 << 16), "has 2 entries, 65536 were stated");
    refuses(made.end_64 + 24, &counts(3), "has 2 entries, 3 were stated");
    refuses(made.end_64 + 24, &counts(1), "has 2 entries, 1 were stated");
    // The number of all parts is the one that counts.
    refuses(made.end_64 + 32, &((1u64 << 16) + 1).to_le_bytes(), "65537 arrays, at most 65536 are read");
    refuses(made.end_64 + 32, &(1u64 << 16).to_le_bytes(), "has 2 entries, 65536 were stated");
    refuses(made.end_64 + 32, &3u64.to_le_bytes(), "has 2 entries, 3 were stated");
    refuses(made.end_64 + 48, &(end as u64 + 1).to_le_bytes(), damaged);
    refuses(made.end_64 + 48, &0u64.to_le_bytes(), "entry 0 of the directory is damaged");
    // Fields that reach past the entry's, and numbers that are promised but not there.
    let extra = made.entries[1] + 46 + "long.name.npy".len();
    refuses(extra + 2, &[40, 0], "more bytes than the file");
    refuses(extra + 9 + 2, &[16, 0], "reach past the end");
    refuses(extra + 9, &[2, 0], "more bytes than the file");
    // Content of another size than is stated, and at another place.
    refuses(extra + 13, &[1], "is stored in");
    refuses(extra + 13 + 16, &[0xff; 4], "reach past the end");
}

#[test]
fn parts_of_archives_and_shared_bytes_are_refused() {
    let made = archive(&Style::default());
    let mut parts = made.bytes.clone();
    parts[made.end + 4] = 1;
    let got = parse_npz("f", &parts).unwrap_err().to_string();
    assert!(got.contains("several parts"), "{got}");
    // Both entries tell of the first file: as many bytes as there are, but one name is not the other's.
    let mut shared = made.bytes.clone();
    let second = made.entries[1];
    let (first_place, first_crc) =
        ([0u8; 4], made.bytes[made.entries[0] + 16..made.entries[0] + 28].to_vec());
    shared[second + 42..second + 46].copy_from_slice(&first_place);
    shared[second + 16..second + 28].copy_from_slice(&first_crc);
    let got = parse_npz("f", &shared).unwrap();
    assert_eq!(got[0].1, got[1].1);
}

#[test]
fn names_have_their_limits() {
    let x: AnyTensor = Tensor::new(&[], vec![1.0f32]).unwrap().into();
    let (longest, longer) = ("n".repeat(1000), "n".repeat(1001));
    assert_eq!(parse_npz("f", &npz_bytes(&[(&longest, &x)]).unwrap()).unwrap()[0].0, longest);
    assert!(npz_bytes(&[(&longer, &x)]).is_err());
}
