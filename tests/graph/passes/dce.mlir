module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  "giw.kv_cache"() {head_dim = 4 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window = 0 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "dead1.weight", parts = ["dead1.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %4 = "giw.linear"(%2, %3) {label = "dead1"} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %5 = "giw.param"() {name = "dead2.weight", parts = ["dead2.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %6 = "giw.param"() {name = "dead2.bias", parts = ["dead2.bias"], role = "bias", rows = array<i64: 8>} : () -> tensor<8xf32>
  %7 = "giw.linear"(%4, %5, %6) {label = "dead2"} : (tensor<?x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %8 = "giw.param"() {name = "k.weight", parts = ["k.weight"], role = "attn_qkv", rows = array<i64: 4>} : () -> tensor<4x8xf32>
  %9 = "giw.linear"(%2, %8) {label = "k"} : (tensor<?x8xf32>, tensor<4x8xf32>) -> tensor<?x4xf32>
  "giw.kv_write"(%9, %9) {label = "kv", layer = 0 : i64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> ()
  "giw.hidden"(%2) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %10 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %11 = "giw.rms_norm"(%2, %10) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%11) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %12 = "giw.lm_head"(%11, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%12) {label = "output"} : (tensor<?x32xf32>) -> ()
}
// ---- after ----
module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  "giw.kv_cache"() {head_dim = 4 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window = 0 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "k.weight", parts = ["k.weight"], role = "attn_qkv", rows = array<i64: 4>} : () -> tensor<4x8xf32>
  %4 = "giw.linear"(%2, %3) {label = "k"} : (tensor<?x8xf32>, tensor<4x8xf32>) -> tensor<?x4xf32>
  "giw.kv_write"(%4, %4) {label = "kv", layer = 0 : i64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> ()
  "giw.hidden"(%2) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %5 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %6 = "giw.rms_norm"(%2, %5) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%6) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %7 = "giw.lm_head"(%6, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%7) {label = "output"} : (tensor<?x32xf32>) -> ()
}
