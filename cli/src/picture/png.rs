//! PNG files of eight bits a channel, red, green and blue.

use png::{BitDepth, ColorType, Compression, Encoder, EncodingError, PixelDimensions, Unit};

/// A PNG file of `size` (height, width) pixels, three bytes each, with its pixels per metre if they are known.
pub(super) fn encode(
    [height, width]: [usize; 2],
    rgb: &[u8],
    per_metre: Option<u32>,
) -> Result<Vec<u8>, EncodingError> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_compression(Compression::Balanced);
    encoder.set_pixel_dims(per_metre.map(|n| PixelDimensions { xppu: n, yppu: n, unit: Unit::Meter }));
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgb)?;
    writer.finish()?;
    Ok(file)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Height, width and pixels.
    pub(in crate::picture) fn decode(file: &[u8]) -> ([usize; 2], Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (ColorType::Rgb, BitDepth::Eight));
        ([info.height as usize, info.width as usize], pixels)
    }

    #[test]
    fn picture_png_comes_back() {
        for [h, w] in [[1, 1], [1, 5], [7, 3], [64, 100]] {
            // Rows that differ little from those above, and rows that differ much.
            let pixels: Vec<u8> = (0..h * w * 3)
                .map(|i| if i / 30 % 2 == 0 { (i % 7) as u8 } else { (i * 97) as u8 })
                .collect();
            let file = encode([h, w], &pixels, Some(5669)).unwrap();
            assert!(file.windows(13).any(|w| w == b"pHYs\0\0\x16\x25\0\0\x16\x25\x01"));
            assert_eq!(decode(&file), ([h, w], pixels));
        }
    }
}
