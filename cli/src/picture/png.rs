//! PNG files of eight bits a channel, red, green and blue.

use dittograd::io::checksum::crc32;
use miniz_oxide::deflate::compress_to_vec_zlib;

/// A PNG file of `size` (height, width) pixels, three bytes each, with its pixels per metre if they are known.
pub(super) fn encode([height, width]: [usize; 2], rgb: &[u8], per_metre: Option<u32>) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = Vec::with_capacity(13);
    header.extend_from_slice(&(width as u32).to_be_bytes());
    header.extend_from_slice(&(height as u32).to_be_bytes());
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    chunk(&mut file, b"IHDR", &header);
    if let Some(per_metre) = per_metre {
        let one = per_metre.to_be_bytes();
        chunk(&mut file, b"pHYs", &[&one[..], &one, &[1]].concat());
    }
    chunk(&mut file, b"IDAT", &compress_to_vec_zlib(&filtered(width * 3, rgb), 8));
    chunk(&mut file, b"IEND", &[]);
    file
}

/// Rows as they are, or as differences to the row above where that looks easier to compress.
fn filtered(row: usize, rgb: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(rgb.len() + rgb.len() / row.max(1) + 1);
    let mut above = vec![0u8; row];
    for line in rgb.chunks_exact(row.max(1)) {
        let up = || line.iter().zip(&above).map(|(x, a)| x.wrapping_sub(*a));
        let cost = |bytes: &mut dyn Iterator<Item = u8>| -> u64 {
            bytes.map(|b| u64::from((b as i8).unsigned_abs())).sum()
        };
        if cost(&mut up()) < cost(&mut line.iter().copied()) {
            all.push(2);
            all.extend(up());
        } else {
            all.push(0);
            all.extend_from_slice(line);
        }
        above.copy_from_slice(line);
    }
    all
}

fn chunk(file: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    file.extend_from_slice(&(data.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend_from_slice(name);
    file.extend_from_slice(data);
    let crc = crc32(&file[start..]);
    file.extend_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Height, width and pixels, read by somebody else.
    pub(in crate::picture) fn decode(file: &[u8]) -> ([usize; 2], Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        ([info.height as usize, info.width as usize], pixels)
    }

    #[test]
    fn picture_png_comes_back() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        for [h, w] in [[1, 1], [1, 5], [7, 3], [64, 100]] {
            // Rows that differ little from those above, and rows that differ much.
            let pixels: Vec<u8> = (0..h * w * 3)
                .map(|i| if i / 30 % 2 == 0 { (i % 7) as u8 } else { (i * 97) as u8 })
                .collect();
            assert_eq!(decode(&encode([h, w], &pixels, Some(5669))), ([h, w], pixels));
        }
    }
}
