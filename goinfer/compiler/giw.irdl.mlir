// The `giw` dialect: every op of a model graph, declared here and nowhere else.
// compiler/ir.py loads this file into MLIR (which then rejects unknown and ill-typed ops) and derives from it
// the operand order, the attribute kinds and the result names that the builder and the verifier use.
// (In IRDL one variable is one value: two attributes that shared a %variable would have to be equal.)
// Exact maths and shapes of an op: compiler/ops.py. `?` is the number of rows of a forward.

irdl.dialect @giw {

  // ---- facts about the model; no operands, no results ----

  irdl.operation @model {
    %family = irdl.base "#builtin.string"
    %vocab = irdl.base "#builtin.integer"
    %hidden = irdl.base "#builtin.integer"
    %n_layers = irdl.base "#builtin.integer"
    %context = irdl.base "#builtin.integer"
    irdl.attributes {"family" = %family, "vocab" = %vocab, "hidden" = %hidden, "n_layers" = %n_layers,
                     "context" = %context}
  }
  irdl.operation @rope_table {
    %name = irdl.base "#builtin.string"
    %dim = irdl.base "#builtin.integer"
    %attention_factor = irdl.base "#builtin.float"
    %inv_freq = irdl.base "#builtin.dense_array"
    irdl.attributes {"name" = %name, "dim" = %dim, "attention_factor" = %attention_factor,
                     "inv_freq" = %inv_freq}
  }
  irdl.operation @kv_cache {
    %layer = irdl.base "#builtin.integer"
    %n_kv_heads = irdl.base "#builtin.integer"
    %head_dim = irdl.base "#builtin.integer"
    %window = irdl.base "#builtin.integer"
    irdl.attributes {"layer" = %layer, "n_kv_heads" = %n_kv_heads, "head_dim" = %head_dim,
                     "window" = %window}
  }

  // ---- inputs and outputs ----

  irdl.operation @token_ids {
    %label = irdl.base "#builtin.string"
    %ids = irdl.base "!builtin.tensor"
    irdl.attributes {"label" = %label}
    irdl.results(ids: %ids)
  }
  irdl.operation @param {
    %name = irdl.base "#builtin.string"
    %role = irdl.base "#builtin.string"
    %parts = irdl.base "#builtin.array"
    %rows = irdl.base "#builtin.dense_array"
    %out = irdl.base "!builtin.tensor"
    irdl.attributes {"name" = %name, "role" = %role, "parts" = %parts, "rows" = %rows}
    irdl.results(out: %out)
  }
  irdl.operation @hidden {
    %x = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %index = irdl.base "#builtin.integer"
    irdl.operands(x: %x)
    irdl.attributes {"label" = %label, "index" = %index}
  }
  irdl.operation @output {
    %x = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    irdl.operands(x: %x)
    irdl.attributes {"label" = %label}
  }

  // ---- ops of the model stage; those marked (both) stay after the passes ----

  irdl.operation @embed { // both
    %ids = irdl.base "!builtin.tensor"
    %weight = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %scale = irdl.base "#builtin.float"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(ids: %ids, weight: %weight)
    irdl.attributes {"label" = %label, "scale" = %scale}
    irdl.results(out: %out)
  }
  irdl.operation @linear { // both
    %x = irdl.base "!builtin.tensor"
    %weight = irdl.base "!builtin.tensor"
    %bias = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x, weight: %weight, bias: optional %bias)
    irdl.attributes {"label" = %label}
    irdl.results(out: %out)
  }
  irdl.operation @rms_norm { // both
    %x = irdl.base "!builtin.tensor"
    %weight = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %eps = irdl.base "#builtin.float"
    %size = irdl.base "#builtin.integer"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x, weight: %weight)
    irdl.attributes {"label" = %label, "eps" = %eps, "size" = %size}
    irdl.results(out: %out)
  }
  irdl.operation @rope {
    %x = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %table = irdl.base "#builtin.string"
    %head_dim = irdl.base "#builtin.integer"
    %interleaved = irdl.base "#builtin.integer"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x)
    irdl.attributes {"label" = %label, "table" = %table, "head_dim" = %head_dim,
                     "interleaved" = %interleaved}
    irdl.results(out: %out)
  }
  irdl.operation @kv_write {
    %k = irdl.base "!builtin.tensor"
    %v = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %layer = irdl.base "#builtin.integer"
    irdl.operands(k: %k, v: %v)
    irdl.attributes {"label" = %label, "layer" = %layer}
  }
  irdl.operation @attention { // both
    %q = irdl.base "!builtin.tensor"
    %sinks = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %layer = irdl.base "#builtin.integer"
    %n_heads = irdl.base "#builtin.integer"
    %n_kv_heads = irdl.base "#builtin.integer"
    %head_dim = irdl.base "#builtin.integer"
    %window = irdl.base "#builtin.integer"
    %scale = irdl.base "#builtin.float"
    %softcap = irdl.base "#builtin.float"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(q: %q, sinks: optional %sinks)
    irdl.attributes {"label" = %label, "layer" = %layer, "n_heads" = %n_heads, "n_kv_heads" = %n_kv_heads,
                     "head_dim" = %head_dim, "window" = %window, "scale" = %scale, "softcap" = %softcap}
    irdl.results(out: %out)
  }
  irdl.operation @slice {
    %x = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %start = irdl.base "#builtin.integer"
    %size = irdl.base "#builtin.integer"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x)
    irdl.attributes {"label" = %label, "start" = %start, "size" = %size}
    irdl.results(out: %out)
  }
  irdl.operation @act {
    %x = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %fn = irdl.base "#builtin.string"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x)
    irdl.attributes {"label" = %label, "fn" = %fn}
    irdl.results(out: %out)
  }
  irdl.operation @mul {
    %x = irdl.base "!builtin.tensor"
    %y = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x, y: %y)
    irdl.attributes {"label" = %label}
    irdl.results(out: %out)
  }
  irdl.operation @add { // both
    %x = irdl.base "!builtin.tensor"
    %y = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x, y: %y)
    irdl.attributes {"label" = %label}
    irdl.results(out: %out)
  }
  irdl.operation @scale { // both
    %x = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %factor = irdl.base "#builtin.float"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x)
    irdl.attributes {"label" = %label, "factor" = %factor}
    irdl.results(out: %out)
  }
  irdl.operation @softcap { // both
    %x = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %cap = irdl.base "#builtin.float"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x)
    irdl.attributes {"label" = %label, "cap" = %cap}
    irdl.results(out: %out)
  }
  irdl.operation @lm_head { // both
    %x = irdl.base "!builtin.tensor"
    %weight = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %scale = irdl.base "#builtin.float"
    %softcap = irdl.base "#builtin.float"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(x: %x, weight: %weight)
    irdl.attributes {"label" = %label, "scale" = %scale, "softcap" = %softcap}
    irdl.results(out: %out)
  }

  // ---- ops that only the passes make ----

  irdl.operation @add_norm {
    %x = irdl.base "!builtin.tensor"
    %delta = irdl.base "!builtin.tensor"
    %weight = irdl.base "!builtin.tensor"
    %post_weight = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %eps = irdl.base "#builtin.float"
    %post_eps = irdl.base "#builtin.float"
    %sum = irdl.base "!builtin.tensor"
    %normed = irdl.base "!builtin.tensor"
    irdl.operands(x: %x, delta: %delta, weight: %weight, post_weight: optional %post_weight)
    irdl.attributes {"label" = %label, "eps" = %eps, "post_eps" = %post_eps}
    irdl.results(sum: %sum, normed: %normed)
  }
  irdl.operation @qkv_post {
    %qkv = irdl.base "!builtin.tensor"
    %q_norm = irdl.base "!builtin.tensor"
    %k_norm = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %layer = irdl.base "#builtin.integer"
    %n_heads = irdl.base "#builtin.integer"
    %n_kv_heads = irdl.base "#builtin.integer"
    %head_dim = irdl.base "#builtin.integer"
    %table = irdl.base "#builtin.string"
    %interleaved = irdl.base "#builtin.integer"
    %eps = irdl.base "#builtin.float"
    %q = irdl.base "!builtin.tensor"
    irdl.operands(qkv: %qkv, q_norm: optional %q_norm, k_norm: optional %k_norm)
    irdl.attributes {"label" = %label, "layer" = %layer, "n_heads" = %n_heads, "n_kv_heads" = %n_kv_heads,
                     "head_dim" = %head_dim, "table" = %table, "interleaved" = %interleaved, "eps" = %eps}
    irdl.results(q: %q)
  }
  irdl.operation @gate_act {
    %gate_up = irdl.base "!builtin.tensor"
    %label = irdl.base "#builtin.string"
    %fn = irdl.base "#builtin.string"
    %size = irdl.base "#builtin.integer"
    %out = irdl.base "!builtin.tensor"
    irdl.operands(gate_up: %gate_up)
    irdl.attributes {"label" = %label, "fn" = %fn, "size" = %size}
    irdl.results(out: %out)
  }
}
