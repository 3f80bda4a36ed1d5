// sluice._core.Attention, on arrays of NumPy or of any library that speaks DLPack.

#include "bind.h"

namespace sluice::python {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void make(Attention* place, const nb::dict& given) {
  Options options(given);
  AttentionShape shape;
  Device device = Device::kCpu;
  DType dtype = DType::kF32;
  options.take("n_heads", shape.n_heads);
  options.take("n_kv_heads", shape.n_kv_heads);
  options.take("head_dim", shape.head_dim);
  options.take("capacity", shape.capacity);
  options.take("scale", shape.scale);
  options.take_word<Device>("device", kDevices, device);
  options.take_word<DType>("dtype", kDTypes, dtype);
  if (given.contains("plan")) {
    const auto plan = nb::cast<Plan>(given["plan"]);
    nb::object taken;
    int64_t layer = 0;
    options.take("plan", taken);
    options.take("layer", layer);
    options.finish();
    new (place) Attention(shape, plan, layer, device, dtype);
    return;
  }
  const AttentionOptions attention = attention_options(options);
  options.finish();
  new (place) Attention(shape, attention, device, dtype);
}

void append(Attention& attention, const Rows& q, const Rows& k, const Rows& v, const OutRows& out) {
  const nb::gil_scoped_release released;
  attention.append({q.data(), q.size()}, {k.data(), k.size()}, {v.data(), v.size()},
                   {out.data(), out.size()});
}

}  // namespace

void bind_attention(nb::module_& core) {
  nb::class_<Attention>(core, "Attention", "The keys and values of one layer of one sequence.")
      .def("__init__", &make, nb::arg("options"))
      .def("append", &append, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out").noconvert())
      .def_prop_ro("is_dense", &Attention::is_dense)
      .def_prop_ro("length", &Attention::length)
      .def_prop_ro("keys_read", &Attention::keys_read)
      .def_prop_ro("keys_read_by_head", &Attention::keys_read_by_head)
      .def("clear", &Attention::clear);
}

}  // namespace sluice::python
