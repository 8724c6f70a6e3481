module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  "giw.kv_cache"() {head_dim = 4 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window = 0 : i64} : () -> ()
  "giw.rope_table"() {attention_factor = 1.000000e+00 : f64, dim = 4 : i64, inv_freq = array<f32: 1.000000e+00, 2.500000e-01>, name = "rope"} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "qkv.weight", parts = ["qkv.weight"], role = "attn_qkv", rows = array<i64: 16>} : () -> tensor<16x8xf32>
  %4 = "giw.linear"(%2, %3) {label = "qkv"} : (tensor<?x8xf32>, tensor<16x8xf32>) -> tensor<?x16xf32>
  %5 = "giw.slice"(%4) {label = "q", size = 8 : i64, start = 0 : i64} : (tensor<?x16xf32>) -> tensor<?x8xf32>
  %6 = "giw.slice"(%4) {label = "k", size = 4 : i64, start = 8 : i64} : (tensor<?x16xf32>) -> tensor<?x4xf32>
  %7 = "giw.slice"(%4) {label = "v", size = 4 : i64, start = 12 : i64} : (tensor<?x16xf32>) -> tensor<?x4xf32>
  %8 = "giw.param"() {name = "q_norm.weight", parts = ["q_norm.weight"], role = "norm", rows = array<i64: 4>} : () -> tensor<4xf32>
  %9 = "giw.rms_norm"(%5, %8) {eps = 9.9999999999999995E-7 : f64, label = "q_norm", size = 4 : i64} : (tensor<?x8xf32>, tensor<4xf32>) -> tensor<?x8xf32>
  %10 = "giw.rope"(%9) {head_dim = 4 : i64, interleaved = false, label = "q_rope", table = "rope"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %11 = "giw.param"() {name = "k_norm.weight", parts = ["k_norm.weight"], role = "norm", rows = array<i64: 4>} : () -> tensor<4xf32>
  %12 = "giw.rms_norm"(%6, %11) {eps = 9.9999999999999995E-7 : f64, label = "k_norm", size = 4 : i64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %13 = "giw.rope"(%12) {head_dim = 4 : i64, interleaved = false, label = "k_rope", table = "rope"} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  "giw.kv_write"(%13, %7) {label = "kv", layer = 0 : i64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> ()
  %14 = "giw.attention"(%10) {head_dim = 4 : i64, label = "attn", layer = 0 : i64, n_heads = 2 : i64, n_kv_heads = 1 : i64, scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %15 = "giw.add"(%2, %14) {label = "residual"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%15) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %16 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %17 = "giw.rms_norm"(%15, %16) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%17) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %18 = "giw.lm_head"(%17, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%18) {label = "output"} : (tensor<?x32xf32>) -> ()
}
// ---- after ----
module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  "giw.kv_cache"() {head_dim = 4 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window = 0 : i64} : () -> ()
  "giw.rope_table"() {attention_factor = 1.000000e+00 : f64, dim = 4 : i64, inv_freq = array<f32: 1.000000e+00, 2.500000e-01>, name = "rope"} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "qkv.weight", parts = ["qkv.weight"], role = "attn_qkv", rows = array<i64: 16>} : () -> tensor<16x8xf32>
  %4 = "giw.linear"(%2, %3) {label = "qkv"} : (tensor<?x8xf32>, tensor<16x8xf32>) -> tensor<?x16xf32>
  %5 = "giw.slice"(%4) {label = "q", size = 8 : i64, start = 0 : i64} : (tensor<?x16xf32>) -> tensor<?x8xf32>
  %6 = "giw.slice"(%4) {label = "k", size = 4 : i64, start = 8 : i64} : (tensor<?x16xf32>) -> tensor<?x4xf32>
  %7 = "giw.slice"(%4) {label = "v", size = 4 : i64, start = 12 : i64} : (tensor<?x16xf32>) -> tensor<?x4xf32>
  %8 = "giw.param"() {name = "q_norm.weight", parts = ["q_norm.weight"], role = "norm", rows = array<i64: 4>} : () -> tensor<4xf32>
  %9 = "giw.rms_norm"(%5, %8) {eps = 9.9999999999999995E-7 : f64, label = "q_norm", size = 4 : i64} : (tensor<?x8xf32>, tensor<4xf32>) -> tensor<?x8xf32>
  %10 = "giw.rope"(%9) {head_dim = 4 : i64, interleaved = false, label = "q_rope", table = "rope"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %11 = "giw.param"() {name = "k_norm.weight", parts = ["k_norm.weight"], role = "norm", rows = array<i64: 4>} : () -> tensor<4xf32>
  %12 = "giw.rms_norm"(%6, %11) {eps = 9.9999999999999995E-7 : f64, label = "k_norm", size = 4 : i64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %13 = "giw.rope"(%12) {head_dim = 4 : i64, interleaved = false, label = "k_rope", table = "rope"} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %14 = "giw.qkv_post"(%4, %8, %11) {eps = 9.9999999999999995E-7 : f64, head_dim = 4 : i64, interleaved = false, label = "attn_qkv_post", layer = 0 : i64, n_heads = 2 : i64, n_kv_heads = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, table = "rope"} : (tensor<?x16xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<?x8xf32>
  %15 = "giw.attention"(%14) {head_dim = 4 : i64, label = "attn", layer = 0 : i64, n_heads = 2 : i64, n_kv_heads = 1 : i64, scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %16 = "giw.add"(%2, %15) {label = "residual"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%16) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %17 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %18 = "giw.rms_norm"(%16, %17) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%18) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %19 = "giw.lm_head"(%18, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%19) {label = "output"} : (tensor<?x32xf32>) -> ()
}
