module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  "giw.kv_cache"() {head_dim = 4 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window = 0 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "blk.0.attn_q.weight", parts = ["blk.0.attn_q.weight"], role = "attn_qkv", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %4 = "giw.param"() {name = "blk.0.attn_q.bias", parts = ["blk.0.attn_q.bias"], role = "bias", rows = array<i64: 8>} : () -> tensor<8xf32>
  %5 = "giw.linear"(%2, %3, %4) {label = "blk.0.attn_q"} : (tensor<?x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %6 = "giw.param"() {name = "blk.0.attn_k.weight", parts = ["blk.0.attn_k.weight"], role = "attn_qkv", rows = array<i64: 4>} : () -> tensor<4x8xf32>
  %7 = "giw.param"() {name = "blk.0.attn_k.bias", parts = ["blk.0.attn_k.bias"], role = "bias", rows = array<i64: 4>} : () -> tensor<4xf32>
  %8 = "giw.linear"(%2, %6, %7) {label = "blk.0.attn_k"} : (tensor<?x8xf32>, tensor<4x8xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %9 = "giw.param"() {name = "blk.0.attn_v.weight", parts = ["blk.0.attn_v.weight"], role = "attn_qkv", rows = array<i64: 4>} : () -> tensor<4x8xf32>
  %10 = "giw.param"() {name = "blk.0.attn_v.bias", parts = ["blk.0.attn_v.bias"], role = "bias", rows = array<i64: 4>} : () -> tensor<4xf32>
  %11 = "giw.linear"(%2, %9, %10) {label = "blk.0.attn_v"} : (tensor<?x8xf32>, tensor<4x8xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  "giw.kv_write"(%8, %11) {label = "kv", layer = 0 : i64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> ()
  %12 = "giw.attention"(%5) {head_dim = 4 : i64, label = "attn", layer = 0 : i64, n_heads = 2 : i64, n_kv_heads = 1 : i64, scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %13 = "giw.param"() {name = "blk.1.attn_q.weight", parts = ["blk.1.attn_q.weight"], role = "attn_qkv", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %14 = "giw.param"() {name = "blk.1.attn_q.bias", parts = ["blk.1.attn_q.bias"], role = "bias", rows = array<i64: 8>} : () -> tensor<8xf32>
  %15 = "giw.linear"(%12, %13, %14) {label = "blk.1.attn_q"} : (tensor<?x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %16 = "giw.param"() {name = "blk.1.attn_k.weight", parts = ["blk.1.attn_k.weight"], role = "attn_qkv", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %17 = "giw.linear"(%12, %16) {label = "blk.1.attn_k"} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %18 = "giw.add"(%15, %17) {label = "sum"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %19 = "giw.add"(%2, %18) {label = "residual"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%19) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %20 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %21 = "giw.rms_norm"(%19, %20) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%21) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %22 = "giw.lm_head"(%21, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%22) {label = "output"} : (tensor<?x32xf32>) -> ()
}
// ---- after ----
module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  "giw.kv_cache"() {head_dim = 4 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window = 0 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "blk.0.attn_q.weight", parts = ["blk.0.attn_q.weight"], role = "attn_qkv", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %4 = "giw.param"() {name = "blk.0.attn_q.bias", parts = ["blk.0.attn_q.bias"], role = "bias", rows = array<i64: 8>} : () -> tensor<8xf32>
  %5 = "giw.param"() {name = "blk.0.attn_qkv.weight", parts = ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"], role = "attn_qkv", rows = array<i64: 8, 4, 4>} : () -> tensor<16x8xf32>
  %6 = "giw.param"() {name = "blk.0.attn_qkv.bias", parts = ["blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias"], role = "bias", rows = array<i64: 8, 4, 4>} : () -> tensor<16xf32>
  %7 = "giw.linear"(%2, %5, %6) {label = "blk.0.attn_qkv"} : (tensor<?x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<?x16xf32>
  %8 = "giw.slice"(%7) {label = "blk.0.attn_q", size = 8 : i64, start = 0 : i64} : (tensor<?x16xf32>) -> tensor<?x8xf32>
  %9 = "giw.param"() {name = "blk.0.attn_k.weight", parts = ["blk.0.attn_k.weight"], role = "attn_qkv", rows = array<i64: 4>} : () -> tensor<4x8xf32>
  %10 = "giw.param"() {name = "blk.0.attn_k.bias", parts = ["blk.0.attn_k.bias"], role = "bias", rows = array<i64: 4>} : () -> tensor<4xf32>
  %11 = "giw.slice"(%7) {label = "blk.0.attn_k", size = 4 : i64, start = 8 : i64} : (tensor<?x16xf32>) -> tensor<?x4xf32>
  %12 = "giw.param"() {name = "blk.0.attn_v.weight", parts = ["blk.0.attn_v.weight"], role = "attn_qkv", rows = array<i64: 4>} : () -> tensor<4x8xf32>
  %13 = "giw.param"() {name = "blk.0.attn_v.bias", parts = ["blk.0.attn_v.bias"], role = "bias", rows = array<i64: 4>} : () -> tensor<4xf32>
  %14 = "giw.slice"(%7) {label = "blk.0.attn_v", size = 4 : i64, start = 12 : i64} : (tensor<?x16xf32>) -> tensor<?x4xf32>
  "giw.kv_write"(%11, %14) {label = "kv", layer = 0 : i64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> ()
  %15 = "giw.attention"(%8) {head_dim = 4 : i64, label = "attn", layer = 0 : i64, n_heads = 2 : i64, n_kv_heads = 1 : i64, scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %16 = "giw.param"() {name = "blk.1.attn_q.weight", parts = ["blk.1.attn_q.weight"], role = "attn_qkv", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %17 = "giw.param"() {name = "blk.1.attn_q.bias", parts = ["blk.1.attn_q.bias"], role = "bias", rows = array<i64: 8>} : () -> tensor<8xf32>
  %18 = "giw.linear"(%15, %16, %17) {label = "blk.1.attn_q"} : (tensor<?x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %19 = "giw.param"() {name = "blk.1.attn_k.weight", parts = ["blk.1.attn_k.weight"], role = "attn_qkv", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %20 = "giw.linear"(%15, %19) {label = "blk.1.attn_k"} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %21 = "giw.add"(%18, %20) {label = "sum"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %22 = "giw.add"(%2, %21) {label = "residual"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%22) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %23 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %24 = "giw.rms_norm"(%22, %23) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%24) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %25 = "giw.lm_head"(%24, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%25) {label = "output"} : (tensor<?x32xf32>) -> ()
}
