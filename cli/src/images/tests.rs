use super::*;

/// A file of `cli/tests/images`.
fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images").join(name)
}

/// A hash of the bits of images.
fn hash(images: Tensor<f32>) -> String {
    let rows = images.shape().dims()[0];
    let data = Dataset::new("", images, Tensor::new(&[rows], vec![0u32; rows]).unwrap(), None).unwrap();
    data.hash()[..16].to_string()
}

fn message<T>(answer: Answer<T>) -> String {
    answer.err().and_then(|e| e.message()).unwrap_or_default()
}

/// The decoded pixels of every kind of JPEG, as they are, and resized: the same on every platform.
const GOLDEN: [(&str, usize, &str, &str); 7] = [
    ("grey", 1, "fa4ec0a0cb76bf68", "5e6943846ffc5082"),
    ("444", 3, "56313e2fbcd396bd", "b13e4f067e250ef4"),
    ("422", 3, "6863512399edcbd7", "f16ec132d90a45ad"),
    ("420", 3, "8f7081ede65226ed", "785a26270bb9097c"),
    ("progressive", 3, "8f7081ede65226ed", "785a26270bb9097c"),
    ("grey-progressive", 1, "eccba7ca6816755f", "566e3911c5beb822"),
    ("restarts", 3, "8f7081ede65226ed", "785a26270bb9097c"),
];

#[test]
fn jpegs_have_the_pixels_they_always_had() {
    let mut got = Vec::new();
    for (name, channels, ..) in GOLDEN {
        let files = [sample(&format!("{name}.jpg"))];
        let read = |size| tensor(&files, None, size, &Busy::hidden()).map_err(|e| e.message()).unwrap();
        let image = read(None);
        assert_eq!(image.shape().dims(), [1, channels, 26, 37], "{name}");
        got.push((name, channels, hash(image), hash(read(Some([16, 48])))));
    }
    assert_eq!(got, GOLDEN.map(|(name, channels, a, b)| (name, channels, a.to_string(), b.to_string())));
    let why = message(read(&sample("cmyk.jpg")));
    assert!(why.contains("cmyk.jpg: has colours of the kind") && why.contains("convert it to RGB"), "{why}");
}

#[test]
fn a_jpeg_is_close_to_what_was_drawn() {
    // The colours of `make.py`, where they are smooth.
    let image = read(&sample("444.jpg")).unwrap_or_else(|_| panic!("a readable file"));
    for (y, x) in [(3, 4), (20, 10), (22, 30)] {
        for (channel, want) in [x as f32 / 36.0, y as f32 / 25.0].into_iter().enumerate() {
            let got = image.plane(channel)[y * 37 + x];
            assert!((got - want).abs() < 0.12, "{y} {x} {channel}: {got} {want}");
        }
    }
}

#[test]
fn damaged_jpegs_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jpg");
    for name in ["420", "progressive", "grey"] {
        let whole = std::fs::read(sample(&format!("{name}.jpg"))).unwrap();
        for part in [3, 20, whole.len() / 2, whole.len() * 9 / 10] {
            std::fs::write(&file, &whole[..part]).unwrap();
            let why = message(read(&file));
            assert!(why.contains("a.jpg: "), "{name}, {part} of {} bytes: {why:?}", whole.len());
        }
        // A header that claims far more pixels than the file can hold.
        let size = whole.windows(2).position(|w| w[0] == 0xff && matches!(w[1], 0xc0 | 0xc2)).unwrap() + 5;
        let mut large = whole.clone();
        large[size..size + 4].copy_from_slice(&[0xff; 4]);
        std::fs::write(&file, &large).unwrap();
        let why = message(read(&file));
        assert!(why.contains("cannot hold 65535x65535 pixels"), "{why}");
    }
}

fn image(size: Size, values: &[f32]) -> Image {
    Image { size, channels: 1, values: values.to_vec() }
}

#[test]
fn resizing_follows_its_definition() {
    let resized = |from: Image, size| from.resized(size).unwrap_or_else(|_| panic!("memory"));
    let line = |values: &[f32], to: usize| resized(image([1, values.len()], values), [1, to]).values;
    // To half the size: the two pixels below and their neighbours, 1 3 3 1; at an end, 3 3 1.
    let got = line(&[0.0, 0.0, 8.0, 16.0, 0.0, 0.0], 3);
    assert_eq!(got, [8.0 / 7.0, 72.0 / 8.0, 16.0 / 7.0].map(|v: f64| v as f32));
    // To twice the size: a quarter of the way between pixels.
    assert_eq!(line(&[0.0, 1.0], 4), [0.0, 0.25, 0.75, 1.0]);
    // To one pixel and from one.
    assert_eq!(line(&[0.25; 100], 1), [0.25]);
    assert_eq!(line(&[0.5], 3), [0.5; 3]);
    // Every source pixel counts, even if 50 become one.
    for at in 0..100 {
        let mut values = [0.0; 100];
        values[at] = 1.0;
        assert!(line(&values, 2).iter().sum::<f32>() > 0.0, "{at}");
    }
    // One colour stays the same colour, and the same size the same image.
    let flat = resized(image([7, 5], &[0.3; 35]), [3, 11]);
    assert!(flat.values.iter().all(|v| (v - 0.3).abs() < 1e-6) && flat.values.len() == 33);
    let some = image([2, 2], &[0.1, 0.2, 0.3, 0.4]);
    assert_eq!(resized(image([2, 2], &some.values), [2, 2]), some);
    // Rows and columns are not mixed up.
    assert_eq!(resized(image([2, 1], &[0.0, 1.0]), [4, 1]).values, [0.0, 0.25, 0.75, 1.0]);
}

#[test]
fn sizes_as_typed() {
    assert_eq!(parse_size("3x70"), Ok([3, 70]));
    assert_eq!(size_text([3, 70]), "3x70");
    for bad in ["", "3", "0x3", "3x", "x3", "3x4x5", "-1x2", "70000x2", "3X4"] {
        assert!(parse_size(bad).unwrap_err().contains("use HxW"), "{bad}");
    }
}

#[test]
fn changed_bytes_of_jpegs_are_read_or_refused() {
    let mut random = Stream::new(3, 0);
    let mut draw = |below: usize| (random.uniform() * below as f32) as usize % below;
    let (mut read, mut refused) = (0, 0);
    for (name, ..) in GOLDEN {
        let whole = std::fs::read(sample(&format!("{name}.jpg"))).unwrap();
        for _ in 0..400 {
            let mut file = whole.clone();
            for _ in 0..=draw(4) {
                let at = 3 + draw(file.len() - 3);
                match draw(3) {
                    0 => file[at] = [0, 0xff, 1, 0x7f][draw(4)],
                    1 => file[at] ^= 1 << draw(8),
                    _ => drop(file.remove(at)),
                }
            }
            match read_jpeg(&file) {
                Ok(image) => {
                    assert_eq!(image.values.len(), image.channels * image.size[0] * image.size[1]);
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} were read, {refused} refused");
}
