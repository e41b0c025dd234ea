//! AMX (Sapphire Rapids and later), as kernels of several formats use it: tiles of 16 rows of 64 bytes, and an
//! instruction that adds the product of two tiles to a third one.
//!
//! [`Tiles`] is the matrix unit. Tests run everything else about these kernels on any processor, with a matrix unit in
//! plain Rust. The instructions themselves can only be tested on a processor that has them; there, `kernel::self_test`
//! checks them before they are used.

use std::arch::asm;
use std::sync::LazyLock;

use crate::aligned_buf::AlignedBuf;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Sums per row of a tile.
pub(crate) const LANES: usize = 16;
/// Bytes per row of a tile.
pub(crate) const BYTES: usize = 64;
/// Bytes that each step of INT8 products prefetches.
pub(crate) const AHEAD: usize = 4 * BYTES;

/// The sums of two by two tiles, in i32 or f32.
#[derive(Clone)]
#[repr(align(64))]
pub(crate) struct Sums<T>(pub [[T; 2 * LANES]; 2 * ROWS]);

impl<T: Copy + Default> Sums<T> {
    pub(crate) fn new() -> Self {
        Self([[T::default(); 2 * LANES]; 2 * ROWS])
    }

    pub(crate) fn place(&mut self) -> Place<T> {
        let (first, stride) = (self.0.as_mut_ptr().cast::<T>(), 2 * LANES);
        Place {
            tiles: [first, first.wrapping_add(ROWS * stride)],
            stride,
        }
    }
}

/// The location of the sums of two by two tiles. Tiles may share rows; both then compute the same sums for them.
#[derive(Clone, Copy)]
pub(crate) struct Place<T> {
    /// The first sum of each tile of rows; the second tile of columns starts [`LANES`] later.
    pub tiles: [*mut T; 2],
    /// Sums from one row to the next.
    pub stride: usize,
}

/// The operands: two tiles of rows by two tiles of columns, in `steps` steps, each [`BYTES`] further along every row.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    /// The first byte of each tile of rows.
    pub rows: [*const u8; 2],
    /// Bytes from one row to the next.
    pub row_stride: usize,
    /// The first byte of each tile of columns; a row of such a tile has four bytes of each column.
    pub columns: [*const u8; 2],
    /// Bytes from one row of a tile of columns to the next.
    pub column_stride: usize,
    pub steps: usize,
}

/// A matrix unit.
pub(crate) trait Tiles: Copy + Send + Sync + 'static {
    /// Configures the unit for this thread until the returned value is dropped.
    fn ready(self) -> Ready<Self> {
        self.configure();
        Ready(self)
    }

    /// Configures all tiles as 16 rows of 64 bytes.
    fn configure(self);

    /// Frees the unit: the system takes longer to suspend a thread that has tiles.
    fn release(self);

    /// Adds products of unsigned bytes of rows and signed bytes of columns to the sums; if `first`, the sums start from
    /// zero. Each step also prefetches [`AHEAD`] bytes from `ahead` into the second-level cache.
    ///
    /// # Safety
    /// The unit of this thread must be ready, all bytes of `operands` readable, and all sums readable and writable;
    /// there must be at least one step.
    #[allow(unsafe_code)]
    unsafe fn add_int8(self, operands: &Operands, ahead: *const u8, sums: Place<i32>, first: bool);

    /// Does the same with pairs of bf16 instead of four bytes. Subnormal numbers count as zero.
    ///
    /// # Safety
    /// As for [`Self::add_int8`].
    #[allow(unsafe_code)]
    unsafe fn add_bf16(self, operands: &Operands, sums: Place<f32>, first: bool);
}

/// A unit that is configured for this thread.
pub(crate) struct Ready<T: Tiles>(T);

impl<T: Tiles> Ready<T> {
    /// Calls [`Tiles::add_int8`].
    ///
    /// # Safety
    /// All bytes of `operands` must be readable, and all sums readable and writable; there must be at least one step.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn add_int8(
        &self,
        operands: &Operands,
        ahead: *const u8,
        sums: Place<i32>,
        first: bool,
    ) {
        // SAFETY: as the caller promises; the unit is ready.
        unsafe { self.0.add_int8(operands, ahead, sums, first) };
    }

    /// Calls [`Tiles::add_bf16`].
    ///
    /// # Safety
    /// As for [`Self::add_int8`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn add_bf16(&self, operands: &Operands, sums: Place<f32>, first: bool) {
        // SAFETY: as the caller promises; the unit is ready.
        unsafe { self.0.add_bf16(operands, sums, first) };
    }
}

impl<T: Tiles> Drop for Ready<T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The processor's own unit. A value of this type proves that this process may use it.
#[derive(Clone, Copy)]
pub(crate) struct Native(());

impl Native {
    /// Requests the use of tiles from the system, once. Only Linux offers it; bf16 and INT8 come together.
    pub(crate) fn new() -> Option<Self> {
        static PERMITTED: LazyLock<bool> = LazyLock::new(|| has_instructions() && permit());
        PERMITTED.then_some(Self(()))
    }
}

/// Returns whether the processor has tiles, and products of INT8 and of bf16.
fn has_instructions() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let highest = std::arch::x86_64::__cpuid(0).eax;
    highest >= 7
        && std::arch::x86_64::__cpuid_count(7, 0).edx & (BF16 | TILE | INT8) == BF16 | TILE | INT8
}

/// Requests that Linux saves and restores the tiles of this process's threads (`arch_prctl` with
/// `ARCH_REQ_XCOMP_PERM`).
#[cfg(target_os = "linux")]
fn permit() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    /// The state component of tiles.
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call without pointers; it overwrites rcx and r11.
    #[allow(unsafe_code)]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _,
            options(nostack)
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permit() -> bool {
    false
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Runs all steps of two by two tiles. `$load` fills the tiles of sums; `$fetch` prefetches in each step.
macro_rules! products {
    ($instruction:literal, $operands:expr, $ahead:expr, $sums:expr, [$($fetch:literal),*], [$($load:literal),*]) => {
        asm!(
            $($load,)*
            "2:",
            $($fetch,)*
            "tileloadd tmm4, [{rows_0} + {row_stride}*1]",
            "tileloadd tmm6, [{columns_0} + {column_stride}*1]",
            "tileloadd tmm7, [{columns_1} + {column_stride}*1]",
            concat!($instruction, " tmm0, tmm4, tmm6"),
            "tileloadd tmm5, [{rows_1} + {row_stride}*1]",
            concat!($instruction, " tmm1, tmm4, tmm7"),
            concat!($instruction, " tmm2, tmm5, tmm6"),
            concat!($instruction, " tmm3, tmm5, tmm7"),
            "add {rows_0}, 64",
            "add {rows_1}, 64",
            "add {columns_0}, {column_step}",
            "add {columns_1}, {column_step}",
            "sub {steps}, 1",
            "jnz 2b",
            "tilestored [{sums_0} + {line}*1], tmm0",
            "tilestored [{sums_0} + {line}*1 + 64], tmm1",
            "tilestored [{sums_1} + {line}*1], tmm2",
            "tilestored [{sums_1} + {line}*1 + 64], tmm3",
            rows_0 = inout(reg) $operands.rows[0] => _,
            rows_1 = inout(reg) $operands.rows[1] => _,
            row_stride = in(reg) $operands.row_stride,
            columns_0 = inout(reg) $operands.columns[0] => _,
            columns_1 = inout(reg) $operands.columns[1] => _,
            column_stride = in(reg) $operands.column_stride,
            column_step = in(reg) $operands.column_stride * ROWS,
            steps = inout(reg) $operands.steps => _,
            ahead = inout(reg) $ahead => _,
            sums_0 = in(reg) $sums.tiles[0],
            sums_1 = in(reg) $sums.tiles[1],
            line = in(reg) $sums.stride * size_of::<u32>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// Runs [`products`] from zero if `$first`, else from the present sums.
macro_rules! add_products {
    ($instruction:literal, $operands:expr, $ahead:expr, $sums:expr, $first:expr, $fetch:tt) => {{
        let (operands, sums) = ($operands, $sums);
        debug_assert!(operands.steps > 0, "at least one step");
        // SAFETY: having this value proves that the instructions may be used; the caller guarantees that the unit is
        // ready, operands are readable, and sums are readable and writable.
        #[allow(unsafe_code)]
        unsafe {
            if $first {
                products!(
                    $instruction,
                    operands,
                    $ahead,
                    sums,
                    $fetch,
                    ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"]
                );
            } else {
                products!(
                    $instruction,
                    operands,
                    $ahead,
                    sums,
                    $fetch,
                    [
                        "tileloadd tmm0, [{sums_0} + {line}*1]",
                        "tileloadd tmm1, [{sums_0} + {line}*1 + 64]",
                        "tileloadd tmm2, [{sums_1} + {line}*1]",
                        "tileloadd tmm3, [{sums_1} + {line}*1 + 64]"
                    ]
                );
            }
        }
    }};
}

impl Tiles for Native {
    fn configure(self) {
        let all = |index: usize| index < 8;
        let configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: std::array::from_fn(|index| if all(index) { BYTES as u16 } else { 0 }),
            rows: std::array::from_fn(|index| if all(index) { ROWS as u8 } else { 0 }),
        };
        // SAFETY: having this value proves that the instruction may be used; it reads 64 bytes.
        #[allow(unsafe_code)]
        unsafe {
            asm!(
                "ldtilecfg [{}]", in(reg) &raw const configuration,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly)
            );
        }
    }

    fn release(self) {
        // SAFETY: as in `configure`; no tile is in use.
        #[allow(unsafe_code)]
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem)
            );
        }
    }

    #[allow(unsafe_code)]
    unsafe fn add_int8(self, operands: &Operands, ahead: *const u8, sums: Place<i32>, first: bool) {
        // A prefetch never faults, wherever it points.
        add_products!(
            "tdpbusd",
            operands,
            ahead,
            sums,
            first,
            [
                "prefetcht1 [{ahead}]",
                "prefetcht1 [{ahead} + 64]",
                "prefetcht1 [{ahead} + 128]",
                "prefetcht1 [{ahead} + 192]",
                "add {ahead}, 256"
            ]
        );
    }

    #[allow(unsafe_code)]
    unsafe fn add_bf16(self, operands: &Operands, sums: Place<f32>, first: bool) {
        add_products!(
            "tdpbf16ps",
            operands,
            operands.columns[0],
            sums,
            first,
            ["/* {ahead} */"]
        );
    }
}

/// Rounds per measurement of a peak.
const ROUNDS: usize = 1_000;
/// Steps after which sums are stored: as many as the first-level cache holds operands for.
const STEPS: usize = 32;

/// Multiplies tiles that the first-level cache holds, for one round of a peak measurement. Returns the number of
/// operations.
pub(crate) fn int8_operations(unit: Native) -> f64 {
    let mut sums = Sums::new();
    // SAFETY: `operations` passes readable operands.
    #[allow(unsafe_code)]
    operations(unit, BYTES, |ready, operands| unsafe {
        ready.add_int8(operands, operands.columns[0], sums.place(), true);
    })
}

/// Does the same in bf16.
pub(crate) fn bf16_operations(unit: Native) -> f64 {
    let mut sums = Sums::new();
    // SAFETY: `operations` passes readable operands.
    #[allow(unsafe_code)]
    operations(unit, BYTES / 2, |ready, operands| unsafe {
        ready.add_bf16(operands, sums.place(), true);
    })
}

/// Calls `multiply` with tiles in the cache and returns the number of operations; `depth` is the number of products per
/// row of a tile and column.
fn operations(
    unit: Native,
    depth: usize,
    mut multiply: impl FnMut(&Ready<Native>, &Operands),
) -> f64 {
    // Rows overlap: each step's rows start one line after those of the previous step.
    let [mut rows, mut columns] = [AlignedBuf::<u8>::default(), AlignedBuf::default()];
    rows.resize((ROWS + STEPS) * BYTES);
    columns.resize(STEPS * ROWS * BYTES);
    rows.fill(1);
    columns.fill(1);
    let operands = Operands {
        rows: [std::hint::black_box(rows.as_ptr()); 2],
        row_stride: BYTES,
        columns: [std::hint::black_box(columns.as_ptr()); 2],
        column_stride: BYTES,
        steps: STEPS,
    };
    let ready = unit.ready();
    (0..ROUNDS).for_each(|_| multiply(&ready, &operands));
    (2 * 4 * ROWS * LANES * depth * STEPS * ROUNDS) as f64
}

/// A matrix unit in plain Rust, written after the definitions of the instructions; tests run everything around them on
/// it.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct Emulated;

#[cfg(test)]
impl Emulated {
    /// Adds to each sum (or to zero if `first`) the result of `add` for four bytes of a row and of a column, in the
    /// order of the rows of a tile.
    ///
    /// # Safety
    /// All bytes of `operands` must be readable, and all sums readable and writable.
    #[allow(unsafe_code)]
    unsafe fn add<T: Copy + Default>(
        operands: &Operands,
        sums: Place<T>,
        first: bool,
        add: impl Fn(&mut T, &[([u8; 4], [u8; 4])]),
    ) {
        let places = || (0..2 * ROWS).flat_map(|row| (0..2 * LANES).map(move |place| (row, place)));
        // SAFETY: as the caller promises.
        let sum = |(row, place): (usize, usize)| unsafe {
            sums.tiles[row / ROWS].add(row % ROWS * sums.stride + place)
        };
        let before = |at| {
            if first {
                T::default()
            } else {
                // SAFETY: as the caller promises.
                unsafe { *sum(at) }
            }
        };
        // Tiles may share rows, so all sums are read before any is written.
        let mut after: Vec<T> = places().map(before).collect();
        for (after, (row, place)) in after.iter_mut().zip(places()) {
            let (rows, row) = (operands.rows[row / ROWS], row % ROWS);
            let (columns, column) = (operands.columns[place / LANES], place % LANES);
            for step in 0..operands.steps {
                let fours: [_; ROWS] = std::array::from_fn(|four| {
                    let row = row * operands.row_stride + step * BYTES + 4 * four;
                    let column = (step * ROWS + four) * operands.column_stride + 4 * column;
                    // SAFETY: as the caller promises.
                    unsafe {
                        (
                            *rows.add(row).cast::<[u8; 4]>(),
                            *columns.add(column).cast::<[u8; 4]>(),
                        )
                    }
                });
                add(after, &fours);
            }
        }
        // SAFETY: as the caller promises.
        places()
            .zip(after)
            .for_each(|(at, after)| unsafe { *sum(at) = after });
    }
}

#[cfg(test)]
impl Tiles for Emulated {
    fn configure(self) {}

    fn release(self) {}

    #[allow(unsafe_code)]
    unsafe fn add_int8(self, operands: &Operands, _: *const u8, sums: Place<i32>, first: bool) {
        let add = |sum: &mut i32, fours: &[([u8; 4], [u8; 4])]| {
            for (x, weight) in fours
                .iter()
                .flat_map(|(row, column)| row.iter().zip(column))
            {
                *sum = sum.wrapping_add(i32::from(*x) * i32::from(*weight as i8));
            }
        };
        // SAFETY: as the caller promises.
        unsafe { Self::add(operands, sums, first, add) };
    }

    #[allow(unsafe_code)]
    unsafe fn add_bf16(self, operands: &Operands, sums: Place<f32>, first: bool) {
        let add = |sum: &mut f32, fours: &[([u8; 4], [u8; 4])]| {
            let widen = |[low, high]: [u8; 2]| half::bf16::from_le_bytes([low, high]).to_f32();
            let mut halves = [0.0f32; 2];
            for (x, weight) in fours {
                for (half, place) in halves.iter_mut().zip([0, 2]) {
                    *half +=
                        widen([x[place], x[place + 1]]) * widen([weight[place], weight[place + 1]]);
                }
            }
            *sum += halves[0] + halves[1];
        };
        // SAFETY: as the caller promises.
        unsafe { Self::add(operands, sums, first, add) };
    }
}
