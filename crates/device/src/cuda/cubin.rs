//! The contents of a compiled module. A cubin is an ELF file, whose symbol table lists its kernels, whatever macros and
//! templates they come from.

/// Symbol type of functions, and the flag of those that are kernels.
const FUNCTION: u8 = 2;
const KERNEL: u8 = 0x10;
/// Section type of a symbol table.
const SYMBOL_SECTION: usize = 2;

/// A little-endian integer of `N` bytes at `at`.
fn number<const N: usize>(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..)?.get(..N)?;
    bytes.iter().rev().try_fold(0usize, |n, &b| Some(n.checked_mul(256)? + usize::from(b)))
}

/// A section: its type, the section it is linked with, its bytes, and the bytes of one entry.
fn section(image: &[u8], index: usize) -> Option<(usize, usize, &[u8], usize)> {
    let (table, size) = (number::<8>(image, 40)?, number::<2>(image, 58)?);
    let at = index.checked_mul(size)?.checked_add(table)?;
    let field = |offset: usize| number::<8>(image, at.checked_add(offset)?);
    let bytes = match number::<4>(image, at.checked_add(4)?)? {
        // This section type takes no room in the file.
        8 => &[],
        _ => image.get(field(24)?..)?.get(..field(32)?)?,
    };
    Some((number::<4>(image, at + 4)?, number::<4>(image, at + 40)?, bytes, field(56)?))
}

/// Names of the kernels that a cubin exports; `None` if it is not a cubin.
pub fn kernels(image: &[u8]) -> Option<Vec<String>> {
    // 64 bits, little-endian.
    if !image.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let mut names = Vec::new();
    for index in 0..number::<2>(image, 60)? {
        let (kind, link, symbols, size) = section(image, index)?;
        if kind != SYMBOL_SECTION {
            continue;
        }
        let (.., strings, _) = section(image, link)?;
        for symbol in symbols.chunks_exact(size.max(24)) {
            let (info, other) = (symbol[4], symbol[5]);
            // The upper half is the binding; 0 is local.
            if info & 15 == FUNCTION && info >> 4 != 0 && other & KERNEL != 0 {
                let name = strings.get(number::<4>(symbol, 0)?..)?.split(|&b| b == 0).next()?;
                names.push(String::from_utf8(name.to_vec()).ok()?);
            }
        }
    }
    names.sort();
    Some(names)
}

/// Section type of the attributes of all functions. An entry is its form, an attribute, the size of its value, and the
/// value.
const INFO_SECTION: usize = 0x7000_0000;
const SIZED_ENTRY: u8 = 4;
/// Attribute: bytes of a function's stack frame. The value is which function, and how many.
const FRAME_SIZE: u8 = 0x11;

/// The largest stack frame of a cubin's functions, in bytes: memory that a thread uses besides its registers. `None` if
/// it is not a cubin.
pub fn stack(image: &[u8]) -> Option<usize> {
    kernels(image)?;
    let mut most = 0;
    for index in 0..number::<2>(image, 60)? {
        let (INFO_SECTION, _, mut facts, _) = section(image, index)? else { continue };
        while let [form, attribute, ..] = *facts {
            let size = if form == SIZED_ENTRY { number::<2>(facts, 2)? } else { 0 };
            let value = facts.get(4..)?.get(..size)?;
            if (form, attribute) == (SIZED_ENTRY, FRAME_SIZE) {
                most = most.max(number::<4>(value, 4)?);
            }
            facts = &facts[4 + size..];
        }
    }
    Some(most)
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::super::nvrtc::{Compiler, Nvrtc};
    use super::{kernels, stack};

    const SOURCE: &str = r#"
#define MORE(T, width) extern "C" __global__ void move##width(T* x) { x[threadIdx.x] = 0; }
MORE(float, 1)
MORE(double, 7)
#ifdef NOTHING
extern "C" __global__ void left_out(float* x) { x[0] = 1.0f; }
#endif
__device__ __noinline__ float helper(float x) { return x * x + 1.0f; }
extern "C" __global__ void __launch_bounds__(32, 2) one(float* x) { x[0] = helper(x[1]); }
#define renamed other
extern "C" __global__ void renamed(float* x) { x[0] = 2.0f; }
// __global__ void comment(float* x)
__device__ float variable[5];
static __global__ void unseen(float* x) { x[0] = variable[2]; }
"#;

    #[test]
    fn kernels_are_those_the_compiler_made() {
        match Nvrtc::open() {
            Ok(nvrtc) => {
                for arch in ["sm_80", "sm_90"] {
                    let image = nvrtc.compile("m", SOURCE, arch).expect("compiles");
                    assert_eq!(
                        kernels(&image).expect("a cubin"),
                        ["move1", "move7", "one", "other"],
                        "{arch}"
                    );
                }
            }
            Err(why) => println!("skipped: {why}"),
        }
    }

    #[test]
    fn a_stack_is_as_large_as_what_lies_there() {
        let source = |n: usize| {
            format!(
                "extern \"C\" __global__ void one(float* x) {{ float y[{n}]; for (int i = 0; i < {n}; ++i) y[i] = x[i]; \
                 for (int i = 0; i < 9; ++i) x[i] = y[(int)x[i] % {n}]; }}"
            )
        };
        match Nvrtc::open() {
            Ok(nvrtc) => {
                let stack = |n| stack(&nvrtc.compile("m", &source(n), "sm_90").expect("compiles"));
                assert_eq!([stack(100), stack(2000)], [Some(400), Some(8000)]);
                let none = nvrtc.compile("m", SOURCE, "sm_90").expect("compiles");
                assert_eq!(super::stack(&none), Some(0));
            }
            Err(why) => println!("skipped: {why}"),
        }
    }

    #[test]
    fn a_broken_image_is_none_and_never_a_panic() {
        assert_eq!(kernels(b""), None);
        assert_eq!(kernels(b"MZ and more"), None);
        let source =
            "extern \"C\" __global__ void one(float* x) {}\nextern \"C\" __global__ void two(int n) {}";
        let image = Fake::new().stub().compile("m", source, "sm_90").expect("made up");
        assert_eq!(kernels(&image).expect("an image"), ["one", "two"]);
        for end in 0..image.len() {
            let _ = stack(&image[..end]);
        }
        for at in 0..image.len().min(512) {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut broken = image.clone();
                broken[at] = byte;
                let _ = stack(&broken);
            }
        }
    }
}
