//! Tests that the self-test finds every bug that is planted in a shader.

use super::super::super::context::Context;
use super::super::super::context::tests::context;
use super::super::weight_format::WeightFormat;
use super::*;

/// Returns the result of a kernel's self-test with a bug in its shader.
fn found(
    context: &Context,
    kernel: Kernel,
    planted: Option<[&'static str; 2]>,
) -> std::result::Result<(), String> {
    let mut pipelines = Pipelines::new(ModelVariant::ALL[1]);
    pipelines.planted = planted;
    check(context, &mut pipelines, &[kernel]).unwrap()
}

const HEAD_DIM: u32 = 16;

#[test]
fn an_error_planted_in_any_step_is_found_and_named() {
    let Some(context) = context() else { return };
    let (rope, combine) = (Kernel::Rope(HEAD_DIM), Kernel::Combine(HEAD_DIM));
    let [tile, one] = [16, 1].map(|queries| Kernel::Attention(HEAD_DIM, queries));
    let (many, few) = (
        Kernel::Tile(WeightFormat::F16),
        Kernel::Rows(WeightFormat::Int4, 4),
    );
    let quantize = Kernel::Quantize;
    let (int8_many, int8_few) = (
        Kernel::Tile(WeightFormat::W8a8),
        Kernel::Rows(WeightFormat::W8a8, 4),
    );
    for (kernel, [right, wrong], expected) in [
        (
            Kernel::Norm,
            ["+ norm.epsilon", ""],
            "norm: RMS norm: number",
        ),
        (
            Kernel::Norm,
            ["quad += THREADS", "quad += 2u * THREADS"],
            "norm: RMS norm: number",
        ),
        (
            Kernel::Norm,
            ["input[from_row + quad] - mean;", "input[from_row + quad];"],
            "layer norm: number",
        ),
        (
            Kernel::Norm,
            ["value += parameters[norm.bias_at + quad]", "value += 0.0"],
            "layer norm: number",
        ),
        (
            Kernel::Norm,
            ["value += out[to_row + quad]", "value += 0.0"],
            "RMS norm that is added: number",
        ),
        (
            Kernel::Norm,
            ["row = table[call.outputs_at + row]", "row = row + 0u"],
            "of the wanted rows: number",
        ),
        (
            rope,
            [
                "return select(a * angle.x - b",
                "return select(a * angle.x + b",
            ],
            "RoPE of heads of 16: pairs of",
        ),
        (
            rope,
            ["(dim & 1u) == 1u", "(dim & 1u) == 0u"],
            "pairs of neighbours: queries: number",
        ),
        (
            rope,
            ["dim >= rope.pairs", "dim > rope.pairs"],
            "pairs of halves: queries: number",
        ),
        (
            rope,
            ["if dim >= 2u * rope.pairs", "if false"],
            "norm and pairs of halves of some dimensions: queries",
        ),
        (
            rope,
            [
                "select(rope.key_norm_at, rope.query_norm_at",
                "select(rope.query_norm_at, rope.key_norm_at",
            ],
            "norm and",
        ),
        (
            rope,
            [
                "select(rope.key_epsilon, rope.query_epsilon",
                "select(rope.query_epsilon, rope.key_epsilon",
            ],
            "norm and",
        ),
        (
            rope,
            ["rope.angles_at + row", "rope.angles_at + 0u * row"],
            "pairs of halves: queries",
        ),
        (
            rope,
            ["+ position / PAGE]", "]"],
            "pairs of halves: keys and values: number",
        ),
        (
            rope,
            ["(page * 2u + plane)", "(page * 2u)"],
            "pairs of halves: keys and values: number",
        ),
        (
            rope,
            ["if call.returns == 1u", "if true"],
            "keys and values for the CPU: number",
        ),
        (
            rope,
            ["rope.words_before *", "0u *"],
            "keys and values for the CPU: number",
        ),
        (
            tile,
            ["other <= own &&", "other < own &&"],
            "attention of heads of 16, tiles of 16 queries: causal: number",
        ),
        (
            tile,
            ["other <= own &&", "other <= last &&"],
            "causal: number",
        ),
        (
            tile,
            [
                "own - other < attention.window",
                "own - other <= attention.window",
            ],
            "a window over two pages",
        ),
        (tile, ["if position + key <= last {", "{"], "causal: number"),
        (tile, ["table[pages_at + page]", "page"], "causal: number"),
        (
            tile,
            ["(place + attention.kv_heads) * PAGE", "place * PAGE"],
            "causal: number",
        ),
        (
            tile,
            ["index / KEYS / of_tile", "index / KEYS / QUERIES"],
            "causal: number",
        ),
        (
            tile,
            ["* of_key_head + first_head +", "* of_key_head +"],
            "more heads than a tile has queries",
        ),
        (
            tile,
            ["if attention.soft_cap > 0.0", "if false"],
            "soft cap",
        ),
        (tile, ["* factors[query]", "* 1.0"], "causal: number"),
        (
            tile,
            ["totals[query] * factor", "totals[query]"],
            "causal: number",
        ),
        (tile, ["* attention.scale", "* 1.0"], "causal: number"),
        (
            tile,
            ["page < end_page", "page + 1u < end_page"],
            "causal: number",
        ),
        (
            tile,
            [
                "vec4<f32>(tops[query], totals[query]",
                "vec4<f32>(tops[query], 1.0",
            ],
            "pages apart: number",
        ),
        (
            one,
            ["position + KEYS <= first", "position <= first"],
            "tiles of 1 queries",
        ),
        (
            one,
            [
                "max(split * call.pages_of_split, first / PAGE)",
                "0u * split",
            ],
            "pages apart: number",
        ),
        (
            combine,
            ["exponential(of_split.x - top)", "1.0"],
            "parts of attention of heads of 16: parts of pages: number",
        ),
        (
            combine,
            ["factor * of_split.y", "of_split.y"],
            "parts of pages: number",
        ),
        (
            combine,
            ["split < call.splits", "split + 1u < call.splits"],
            "parts of pages: number",
        ),
        (
            Kernel::Activate,
            ["x / (1.0 + exponential(-x))", "x / (1.0 + exponential(x))"],
            "activation: Silu",
        ),
        (
            Kernel::Activate,
            ["0.044715", "0.054715"],
            "GeluTanh with a gate: number",
        ),
        (
            Kernel::Activate,
            ["0.5 * x *", "x *"],
            "Gelu with a gate: number",
        ),
        (
            Kernel::Activate,
            ["feed_forward.gated == 1u", "true"],
            "Silu without a gate: number",
        ),
        (
            Kernel::Activate,
            ["gate * input[", "gate + input["],
            "Silu with a gate: number",
        ),
        (
            many,
            ["value += out[index]", "value += 0.0"],
            "product of many rows, weights in f16: added to",
        ),
        (
            many,
            ["found + parameters[product.bias_at + column]", "found"],
            "added to bias and output: number",
        ),
        (
            many,
            ["product.of_outputs == 1u", "false"],
            "of the wanted rows: number",
        ),
        (
            many,
            ["&& at < product.units", "&& at + 1u < product.units"],
            "added to bias and output: number",
        ),
        (
            many,
            ["column < product.columns", "column <= product.columns"],
            "added to bias and output: number",
        ),
        (
            many,
            [
                "unpack2x16float(word)",
                "unpack2x16float(word & 0xfff0fff0u)",
            ],
            "product of many rows",
        ),
        (
            few,
            [
                "row * product.stride + product.first",
                "row * product.stride",
            ],
            "product of few rows, weights in INT4",
        ),
        (
            few,
            ["[group % 2u]", ".x"],
            "product of few rows, weights in INT4: added to",
        ),
        (
            few,
            ["row + index, last_row", "row, last_row"],
            "added to bias and output: number",
        ),
        (
            quantize,
            ["round(x * quantize", "floor(0.5 + x * quantize"],
            "quantization to INT8: clipped: row 0: number 0",
        ),
        (
            quantize,
            ["vec4<f32>(-127.0), ", "vec4<f32>(-128.0), "],
            "clipped: row",
        ),
        (quantize, ["<< 16u", "<< 15u"], "clipped: row 0: number"),
        (
            quantize,
            ["if any(exponents", "if all(exponents"],
            "clipped: row 2: scale",
        ),
        (
            quantize,
            ["any_broken |= broken[other]", "any_broken = broken[other]"],
            "clipped: row 2: scale",
        ),
        (
            quantize,
            ["abs(x[lane]) > clip()", "x[lane] > clip()"],
            "with its outliers: row 0: scale",
        ),
        (
            quantize,
            ["select(-clip(), clip(),", "select(clip(), clip(),"],
            "with its outliers: row 0: outlier",
        ),
        (
            quantize,
            ["other < thread", "other <= thread"],
            "with its outliers: row 0: outlier",
        ),
        (
            quantize,
            ["* parameters[quantize.smoothing_at + quad]", ""],
            "smoothed, with its outliers: row 0: number",
        ),
        (
            int8_many,
            ["f32(sum) * (", "f32(sum + 20) * ("],
            "activations in INT8: added to bias and output: number",
        ),
        (
            int8_many,
            ["y > 0u;", "y > 1000u;"],
            "added to bias and output: number",
        ),
        (
            int8_many,
            ["index <= count", "index < count"],
            "added to bias and output: number",
        ),
        (
            int8_many,
            ["24u - 8u * (outlier.x % 4u)", "24u - 8u * (outlier.x % 3u)"],
            "added to bias and output: number",
        ),
        (
            int8_many,
            ["column / 16u * units", "units"],
            "added to bias and output: number",
        ),
        (
            int8_many,
            ["&& of_input < quads()", "&& of_input + 1u < quads()"],
            "added to bias and output: number",
        ),
        (
            int8_many,
            ["column >= product.columns", "column > product.columns"],
            "added to bias and output: number",
        ),
        (
            int8_few,
            ["at += SLICES", "at += 2u * SLICES"],
            "product of few rows, weights in INT8, activations in INT8",
        ),
        (
            int8_few,
            ["first_row + index, last_row", "first_row, last_row"],
            "added to bias and output: number",
        ),
        (
            quantize,
            [
                "quantized[call.rows * quantize.quads + row] = scale",
                "quantized[call.rows * quantize.quads] = scale",
            ],
            "two scales",
        ),
        (
            Kernel::Join,
            ["join.computed_at + row", "row"],
            "added to the output: number",
        ),
        (
            Kernel::Join,
            ["|| of_output >= end", ""],
            "added to the output: number",
        ),
        (
            int8_few,
            ["of_slice < SLICES", "of_slice + 1u < SLICES"],
            "added to bias and output: number",
        ),
    ] {
        let source = kernel.source(ModelVariant::ALL[1]);
        assert!(source.contains(right), "{kernel}: {right}");
        let reason =
            found(&context, kernel, Some([right, wrong])).expect_err(&format!("{kernel}: {wrong}"));
        assert!(reason.contains(expected), "{wrong}: {reason}");
    }
}

#[test]
fn every_kernel_of_every_variant_computes_rightly() {
    let Some(context) = context() else { return };
    let products = WeightFormat::ALL
        .into_iter()
        .flat_map(super::super::dispatch::product_kernels)
        .collect::<Vec<_>>();
    for variant in ModelVariant::ALL.into_iter().chain(ModelVariant::ROUNDED) {
        let expected = match variant.missing(&context) {
            None => Ok(()),
            Some(what) => Err(format!("it has no {what}")),
        };
        assert_eq!(
            check(&context, &mut Pipelines::new(variant), &products).unwrap(),
            expected,
            "{}",
            variant.name
        );
    }
    let mut kernels = vec![Kernel::Quantize, Kernel::Norm, Kernel::Activate];
    for head_dim in [8, 64, 80, 128, 256] {
        let (most, _) = Kernel::attention_tile(head_dim);
        let dim = head_dim as u32;
        kernels.extend(
            [1, 2, 4, 8, 16]
                .into_iter()
                .filter(|queries| *queries <= most as u32)
                .map(|queries| Kernel::Attention(dim, queries)),
        );
        kernels.extend([Kernel::Rope(dim), Kernel::Combine(dim)]);
    }
    assert_eq!(
        check(
            &context,
            &mut Pipelines::new(ModelVariant::ALL[1]),
            &kernels
        )
        .unwrap(),
        Ok(())
    );
}

#[test]
fn products_in_f16_are_refused_beyond_their_bound() {
    let Some(context) = context() else { return };
    let kernel = Kernel::Tile(WeightFormat::F32);
    // Clears five mantissa bits of f16.
    let coarse =
        "(bitcast<vec4<f32>>(bitcast<vec4<u32>>(value * SHRINK) & vec4<u32>(0xfffc0000u)))";
    let of_second = [
        "second_quad(at) % QUADS, value.second",
        "second_quad(at) % QUADS, value.second * 0.99",
    ];
    let of_invocations = [
        ["(value * SHRINK)", coarse],
        of_second,
        ["sums / SHRINK", "sums"],
    ];
    let of_matrices = [
        ["(value * SHRINK)", coarse],
        of_second,
        ["index] / SHRINK", "index]"],
        ["(row + SIDE) * STRIDE + depth", "row * STRIDE + depth"],
        [
            "(column + SIDE) * STRIDE + depth",
            "column * STRIDE + depth",
        ],
        [
            "sums10 = coopMultiplyAdd(x1, w0, sums10)",
            "sums10 = coopMultiplyAdd(x0, w0, sums10)",
        ],
        [
            "coopLoad<Right>(&of_columns[column",
            "coopLoadT<Right>(&of_columns[column",
        ],
        ["coopStoreT(sums01", "coopStore(sums01"],
        [
            "before + subgroup < 4u",
            "before + subgroup != 2u && before + subgroup < 4u",
        ],
        ["depth < 4u * QUADS", "depth < 4u * QUADS - SIDE"],
    ];
    let cases = ModelVariant::ROUNDED.into_iter().flat_map(|variant| {
        let planted = if variant.has_matrices() {
            &of_matrices[..]
        } else {
            &of_invocations[..]
        };
        planted.iter().map(move |planted| (variant, *planted))
    });
    for (variant, planted) in cases.filter(|(variant, _)| variant.missing(&context).is_none()) {
        assert!(kernel.source(variant).contains(planted[0]), "{planted:?}");
        let mut pipelines = Pipelines::new(variant);
        pipelines.planted = Some(planted);
        let reason = check(&context, &mut pipelines, &[kernel])
            .unwrap()
            .expect_err(planted[1]);
        assert!(
            reason.contains("product of many rows, weights in f32"),
            "{reason}"
        );
    }
}
