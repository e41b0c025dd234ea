// Functions that several shaders use.

// Activation of a feed-forward: 0 is SiLU, 1 is GELU in its tanh form, 2 is GELU with the error function, 3 the
// square of ReLU.
fn activate(activation: u32, x: f32) -> f32 {
    switch activation {
        case 0u: {
            return x / (1.0 + exponential(-x));
        }
        case 1u: {
            let u = 0.7978846 * (x + 0.044715 * x * x * x);
            return x / (1.0 + exponential(-2.0 * u));
        }
        case 2u: {
            return 0.5 * x * (1.0 + error_function(x * 0.70710677));
        }
        default: {
            let positive = max(x, 0.0);
            return positive * positive;
        }
    }
}

// Computes eˣ to a few units in the last place, which WGSL's exp does not guarantee: x = n · ln 2 + r, and eˣ = 2ⁿ ·
// eʳ.
fn exponential(x: f32) -> f32 {
    let bounded = clamp(x, -87.0, 88.0);
    let n = round(bounded * 1.442695);
    let r = fma(n, 2.1219444e-4, fma(n, -0.6933594, bounded));
    var series = 1.0 / 720.0;
    series = fma(series, r, 1.0 / 120.0);
    series = fma(series, r, 1.0 / 24.0);
    series = fma(series, r, 1.0 / 6.0);
    series = fma(series, r, 0.5);
    series = fma(series, r, 1.0);
    series = fma(series, r, 1.0);
    return series * bitcast<f32>(u32(i32(n) + 127) << 23u);
}

// Computes the error function to 3e-7 (Abramowitz and Stegun, 7.1.26).
fn error_function(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    var series = 1.0614054;
    series = series * t - 1.4531521;
    series = series * t + 1.4214138;
    series = series * t - 0.28449672;
    series = series * t + 0.2548296;
    let positive = 1.0 - series * t * exponential(-x * x);
    return select(-positive, positive, x >= 0.0);
}

fn hyperbolic_tangent(x: f32) -> f32 {
    // Beyond ±10 the result is ±1 to the last bit.
    let e = exponential(2.0 * clamp(x, -10.0, 10.0));
    return (e - 1.0) / (e + 1.0);
}
